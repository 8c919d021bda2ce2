"""Draw docs/scale.png: what a trillion tokens take over the size of the packs, by `splice plan`.

python bench/scale.py [--documents 540M] [--mean-chars 5000] [--figure docs/scale.png]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PACKS = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000]
GROUPS = {
    "read, assign, gather, tokenise": ("read", "assign", "gather", "tokenizer", "tokenise"),
    "index": ("index",),
    "search": ("search",),
    "walk": ("walk",),
    "lay, write": ("lay", "write"),
}
COLOURS = ["#9aa5b1", "#72b7b2", "#e45756", "#f2a541", "#54a24b"]
MOST = 2**22  # documents that a build takes in a pack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", default="540M")
    parser.add_argument("--mean-chars", default="5000")
    parser.add_argument("--figure", type=Path, default=Path(__file__).parent.parent / "docs" / "scale.png")
    arguments = parser.parse_args()
    _draw([_plan(arguments, pack) for pack in PACKS], arguments.figure)


def _plan(arguments: argparse.Namespace, pack: int) -> dict:
    command = [sys.executable, "-m", "splice.cli", "plan", "--documents", arguments.documents, "--json", "--workers",
               "1000", "--mean-chars", arguments.mean_chars, "--pack-documents", str(pack)]  # fmt: skip
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def _draw(plans: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.0), dpi=150, width_ratios=[3, 2])
    for (group, names), colour in zip(GROUPS.items(), COLOURS, strict=True):
        seconds = [sum(s["cpu_seconds"] for s in plan["stages"] if s["name"] in names) for plan in plans]
        left.plot(PACKS, [s / 3600 for s in seconds], color=colour, label=group, marker="o", markersize=3)
    left.set_ylabel("CPU hours")
    left.legend(frameon=True, framealpha=1, edgecolor="none", fontsize=8, loc="upper left", borderpad=0)
    right.plot(PACKS, [p["worker_memory_bytes"] / 1e9 for p in plans], color="#4c78a8", marker="o", markersize=3)
    right.axhline(16, color="#9aa5b1", linewidth=0.8)
    right.text(PACKS[0], 18, "16 GB", fontsize=8, color="#6b7683")
    right.set_ylabel("GB of memory a worker")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("documents of a pack")
        axes.axvspan(MOST, PACKS[-1], color="#f3f4f6", zorder=0, linewidth=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvline(50_000, color="#9aa5b1", linewidth=0.8, linestyle=":")
    right.text(
        PACKS[-1], right.get_ylim()[0] * 1.3, "more than\na build takes ", fontsize=8, color="#6b7683", ha="right"
    )
    right.text(56_000, right.get_ylim()[0] * 1.3, "default", fontsize=8, color="#6b7683")
    corpus = plans[0]["corpus"]
    figure.suptitle(
        f"splice plan: {corpus['documents'] / 1e6:,.0f}M documents, {corpus['tokens'] / 1e12:.2g}T tokens, BM25",
        fontsize=10,
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
