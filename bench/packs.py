"""What packs cost: neighbours of the whole corpus that are still in a document's pack, and the walk's scores, by how packs are made.

    python bench/packs.py --code DIR --text DIR [--packs 2 4 8 16] [--json out.json] [--figure packs.png]

Two corpora, documents of 300 to 30,000 characters: the .c and .h files below --code, the .rst and .txt files below --text. Each is
built with `splice build`, BM25 k=1 at 32K, first as one pack, then by --pack-by hash, repository and cluster at several sizes of
packs. Of each build:

* kept: the share of the documents' top-1 and top-10 neighbours in one index over the whole corpus that lie in the document's own
  pack. A pack by hash keeps one in so many as there are packs, by chance.
* score: the mean score of the walk's steps, all of them by the index over the whole corpus; a pack's own index, which the walk
  goes by, has other document frequencies.
* CPU seconds, and how many of them the stages that only packs by cluster have.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from measure import machine, run
from rich.console import Console
from rich.table import Table

from splice.bm25 import Bm25Index
from splice.stages.search import read_graph

GLOBS = {"code": ("*.c", "*.h"), "text": ("*.rst", "*.txt")}
WAYS = ("hash", "repository", "cluster")
CLUSTER_STAGES = ("centroids", "cluster")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--packs", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    corpora = {name: _measure(getattr(arguments, name), globs, arguments.packs) for name, globs in GLOBS.items()}
    result = {"machine": machine("numba", "numpy", "pyarrow", "apache-beam"), "corpora": corpora}
    _show(result)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.figure:
        _draw(result, arguments.figure)


def _measure(corpus: Path, globs: tuple[str, ...], packs: list[int]) -> dict:
    with tempfile.TemporaryDirectory(prefix="splice-bench-") as scratch:
        whole, output = Path(scratch) / "whole", Path(scratch) / "out"
        _build(corpus, globs, whole, "--pack-documents", 10**6)
        manifest = json.loads((whole / "manifest.json").read_text())
        number = {name: i for i, name in enumerate(_ids(whole, 0))}
        starts = sorted(int(path.stem.partition("-")[2]) for path in (whole / "graph").iterdir())
        neighbours, _ = read_graph(whole, 0, starts)
        (index,) = (whole / "work").glob("link-*/index/00000")
        bm25 = Bm25Index.load(index)
        rows = [{**_row(whole, number, neighbours, bm25), "by": "one pack"}]
        for way in WAYS:
            for n in packs:
                most = -(-len(number) // n)
                given = ("--pack-by", way, "--pack-documents", most, "--tokenizer", whole / "tokenizer")
                _build(corpus, globs, output, *given)
                rows.append({**_row(output, number, neighbours, bm25), "by": way, "asked": n})
                shutil.rmtree(output)
    return {
        "documents": len(number),
        "tokens": sum(source["tokens_in"] for source in manifest["ledger"]["sources"].values()),
        "builds": rows,
    }


def _build(corpus: Path, globs: tuple[str, ...], output: Path, *more: object) -> None:
    chosen = [word for pattern in globs for word in ("--glob", pattern)]
    run([sys.executable, "-m", "splice.cli", "build", corpus, *chosen, "--min-chars", 300, "--workers", 2,
         "--output", output, *more])  # fmt: skip


def _ids(dataset: Path, pack: int) -> list[str]:
    tables = [pq.read_table(part, columns=["id"]) for part in sorted((dataset / "documents").glob(f"{pack:05d}-*"))]
    return [name for table in tables for name in table.column("id").to_pylist()]


def _row(dataset: Path, number: dict[str, int], neighbours: np.ndarray, bm25: Bm25Index) -> dict:
    """What one build kept and scored. number: of each id in the whole corpus; neighbours: int32 [N, m], there."""
    manifest = json.loads((dataset / "manifest.json").read_text())
    pack_of, scores = np.full(len(number), -1), []
    for pack in range(len(manifest["packs"])):
        documents = np.array([number[name] for name in _ids(dataset, pack)])
        pack_of[documents] = pack
        plan = pq.read_table(dataset / "plan" / f"{pack:05d}.parquet")
        score, begin = plan.column("score").to_numpy(), plan.column("begin").to_numpy()
        step = ~np.isnan(score) & (begin == 0)
        parents, found = (documents[plan.column(name).to_numpy()[step]] for name in ("parent", "document"))
        scores.append(bm25.pair_scores(parents, found))
    assert (pack_of >= 0).all()
    stages = manifest["run"]["stages"]
    return {
        "packs": len(manifest["packs"]),
        "largest": max(pack["documents"] for pack in manifest["packs"]),
        "top_1": _kept(pack_of, neighbours[:, :1]),
        "top_10": _kept(pack_of, neighbours[:, :10]),
        "step_score": float(np.concatenate(scores).mean()),
        "cpu_seconds": manifest["run"]["cpu_seconds"],
        "cluster_cpu_seconds": sum(stages[name]["cpu_seconds"] for name in CLUSTER_STAGES if name in stages),
    }


def _kept(pack_of: np.ndarray, neighbours: np.ndarray) -> float:
    there = neighbours >= 0
    return float((pack_of[neighbours] == pack_of[:, None])[there].mean())


def _show(result: dict) -> None:
    for name, corpus in result["corpora"].items():
        title = f"{name}: {corpus['documents']:,} documents, {corpus['tokens']:,} tokens, {result['machine']['cpu']}"
        table = Table("packs by", title=title)
        for column in ("packs", "top-1 kept", "top-10 kept", "over hash's", "step score", "CPU s", "clustering"):
            table.add_column(column, justify="right")
        chance = {row["asked"]: row["top_10"] for row in corpus["builds"] if row["by"] == "hash"}
        for row in corpus["builds"]:
            over = f"{row['top_10'] / chance[row['asked']]:.1f}" if "asked" in row else ""
            table.add_row(row["by"], str(row["packs"]), f"{row['top_1']:.3f}", f"{row['top_10']:.3f}", over,
                          f"{row['step_score']:,.0f}", f"{row['cpu_seconds']:.1f}", f"{row['cluster_cpu_seconds']:.1f}")  # fmt: skip
        Console(width=110).print(table)


def _draw(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    titles = {"code": "C of the Linux kernel", "text": "its documentation"}
    colours = {"hash": "#9aa5b1", "repository": "#4c78a8", "cluster": "#e45756"}
    figure, axes = plt.subplots(2, 2, figsize=(8.4, 6.2), dpi=150, sharex=True)
    for column, (name, corpus) in enumerate(result["corpora"].items()):
        whole = next(row for row in corpus["builds"] if row["by"] == "one pack")
        above, below = axes[:, column]
        for way, colour in colours.items():
            rows = [whole, *(row for row in corpus["builds"] if row["by"] == way)]
            packs = [row.get("asked", 1) for row in rows]
            above.plot(
                packs, [row["top_10"] for row in rows], color=colour, marker="o", markersize=4, label=f"{way}, top-10"
            )
            above.plot(packs, [row["top_1"] for row in rows], color=colour, linestyle=":", label=f"{way}, top-1")
            below.plot(
                packs, [row["step_score"] / whole["step_score"] for row in rows], color=colour, marker="o", markersize=4
            )
        above.set_title(f"{titles[name]}, {corpus['documents']:,} documents", fontsize=10)
        above.set_ylim(0, 1.03)
        below.set_ylim(0.5, 1.015)
        for ax in (above, below):
            ax.set_xscale("log", base=2)
            ax.set_xticks(packs, [str(n) for n in packs])
            ax.spines[["top", "right"]].set_visible(False)
        below.set_xlabel("packs")
    axes[0, 0].set_ylabel("neighbours kept in the pack")
    axes[1, 0].set_ylabel("mean step score, over one pack's")
    axes[0, 1].legend(frameon=False, fontsize=8, loc="lower left", ncols=1)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
