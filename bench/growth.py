"""How the cost of a build grows with the corpus: CPU seconds by stage at several sizes, one figure.

    python bench/growth.py --corpus DIR [--sizes 5000 10000 20000 46800] [--json out.json] [--figure growth.png]

A size is a seeded sample of the .c and .h files of 300 to 30,000 bytes below DIR, copied with its directories. One pack
(--pack-documents 100000) and one worker, so that nothing but the number of documents changes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import machine, run
from rich.console import Console
from rich.table import Table

GROUPS = {
    "start": ("prepare",),
    "ingest": ("read", "assign", "gather", "tokenise"),
    "tokenizer": ("tokenizer",),
    "link": ("index", "search"),
    "walk": ("walk",),
    "write": ("lay", "write"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5000, 10_000, 20_000, 46_800])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.corpus.rglob("*.[ch]") if p.is_file() and not p.is_symlink())
    paths = [p for p in paths if 300 <= p.stat().st_size <= 30_000]
    rows = [_measure(arguments.corpus, paths, size) for size in arguments.sizes]
    result = {"machine": machine("numba", "numpy", "pyarrow", "apache-beam"), "sizes": rows}
    _show(result)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.figure:
        _draw(result, arguments.figure)


def _measure(corpus: Path, paths: list[Path], size: int) -> dict:
    chosen = np.sort(np.random.default_rng(0).permutation(len(paths))[:size])
    with tempfile.TemporaryDirectory(prefix="splice-bench-") as scratch:
        tree, output = Path(scratch) / "tree", Path(scratch) / "out"
        for i in chosen:
            target = tree / paths[i].relative_to(corpus)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths[i], target)
        measured = run(
            [sys.executable, "-m", "splice.cli", "build", tree, "--output", output, "--workers", 1,
             "--pack-documents", 100_000]
        )  # fmt: skip
        manifest = json.loads((output / "manifest.json").read_text())
    stages = {name: stage["cpu_seconds"] for name, stage in manifest["run"]["stages"].items()}
    by_group = {group: sum(stages[name] for name in names) for group, names in GROUPS.items()}
    by_group["start"] += measured.cpu_seconds - sum(stages.values())
    return {
        "documents": manifest["packs"][0]["documents"],
        "tokens": manifest["ledger"]["tokens"],
        "cpu_seconds": measured.cpu_seconds,
        "peak_bytes": measured.peak_bytes,
        "by_group": by_group,
    }


def _show(result: dict) -> None:
    table = Table("documents", title=f"CPU seconds, one worker, {result['machine']['cpu']}")
    for name in (*GROUPS, "all", "peak GiB"):
        table.add_column(name, justify="right")
    for row in result["sizes"]:
        cells = [f"{row['by_group'][group]:.1f}" for group in GROUPS]
        table.add_row(f"{row['documents']:,}", *cells, f"{row['cpu_seconds']:.1f}", f"{row['peak_bytes'] / 2**30:.2f}")
    Console(width=110).print(table)


def _draw(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["sizes"]
    documents = [row["documents"] for row in rows]
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=150)
    colours = ["#9aa5b1", "#4c78a8", "#72b7b2", "#e45756", "#f2a541", "#54a24b"]
    axes.stackplot(
        documents, [[row["by_group"][g] for row in rows] for g in GROUPS], labels=list(GROUPS), colors=colours
    )
    for i, row in enumerate(rows):
        axes.annotate(f"{row['cpu_seconds']:.0f} s", (row["documents"], row["cpu_seconds"]), ha="right" if i else "left", va="bottom",
                      xytext=(-2 if i else 4, 3), textcoords="offset points", fontsize=9)  # fmt: skip
    axes.set_xlabel("documents in the pack (C files of the Linux kernel)")
    axes.set_ylabel("CPU seconds of the whole build")
    axes.set_title("splice build, BM25, k = 1, L = 32,768, one worker", fontsize=10)
    axes.set_xticks(documents, [f"{d:,}" for d in documents])
    axes.set_xlim(min(documents), max(documents) * 1.02)
    axes.set_ylim(0, max(row["cpu_seconds"] for row in rows) * 1.12)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
