"""What a report costs: seconds and memory of `write_report` for a dataset, or for a gigabyte of made-up examples.

    python bench/report.py DATASET... [--runs 3] [--json out.json]
    python bench/report.py --gigabyte [--scratch DIR] [--length 32768] [--json out.json]

Each run is a process of its own, imports included. `--gigabyte` writes shards of 1 GB in all to a scratch directory, which it
removes: documents of a log-normal length, tokens of a Zipf law, a tenth of each document copied from the one before it. Medians
of --runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import machine, median, run
from rich.console import Console
from rich.table import Table

from splice import __version__
from splice.files import write_json
from splice.store.shards import Example, file_sha256, write_shard

GIGABYTE = 10**9
SHARD_TOKENS = 2**24
VOCABULARY = 32_000
REPORT = "import sys; from pathlib import Path; from splice.report import write_report; write_report([Path(sys.argv[1])], Path(sys.argv[2]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="*")
    parser.add_argument("--gigabyte", action="store_true")
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not arguments.datasets and not arguments.gigabyte:
        parser.error("name a dataset, or give --gigabyte")
    with tempfile.TemporaryDirectory(prefix="splice-bench-", dir=arguments.scratch) as scratch:
        figures = {path.resolve().name: _measure(path, Path(scratch), arguments.runs) for path in arguments.datasets}
        if arguments.gigabyte:
            made = make_dataset(Path(scratch) / "gigabyte", GIGABYTE, arguments.length)
            figures["gigabyte"] = _measure(made, Path(scratch), arguments.runs)
    report = {"machine": machine("matplotlib", "jinja2", "numpy", "pyarrow"), "reports": figures}
    _show(report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _measure(dataset: Path, scratch: Path, runs: int) -> dict[str, float]:
    page = scratch / "report.html"
    taken = median([run([sys.executable, "-c", REPORT, dataset, page]) for _ in range(runs)])
    shards = json.loads((dataset / "manifest.json").read_text())["shards"]
    return {
        "dataset_bytes": sum(shard["bytes"] for shard in shards),
        "examples": sum(shard["examples"] for shard in shards),
        "page_bytes": page.stat().st_size,
        "wall_seconds": taken.wall_seconds,
        "cpu_seconds": taken.cpu_seconds,
        "peak_bytes": taken.peak_bytes,
    }


def make_dataset(path: Path, size: int, length: int) -> Path:
    """A dataset of shards of `size` bytes in all, with a ledger that balances and no tokenizer."""
    rng = np.random.default_rng(0)
    (path / "data").mkdir(parents=True)
    shards, totals = [], {"written_tokens": 0, "separators": 0}
    padding = 0
    while sum(shard["bytes"] for shard in shards) < size:
        file = path / "data" / f"{len(shards):05d}.parquet"
        made = write_shard(file, _examples(rng, SHARD_TOKENS // length, length), length, "bm25")
        shards.append(
            {"file": file.name, "examples": made["examples"], "bytes": file.stat().st_size, "sha256": file_sha256(file)}
        )
        padding += made["padding"]
        for name in totals:
            totals[name] += made["by_source"]["made"][name]
    examples = sum(shard["examples"] for shard in shards)
    source = {
        "documents_in": 20 * examples, "packed": 20 * examples, "left_out": 0, "duplicate": 0, "near_duplicate": 0,
        "quarantined": 0, "filtered": {}, "tokens_in": totals["written_tokens"], "written": totals["written_tokens"], "trimmed": 0,
        "left_out_tokens": 0, "separators": totals["separators"], "split_documents": 0, "reuses": 0, "reused_tokens": 0,
    }  # fmt: skip
    settings = {
        "sources": ["made"], "retriever": "bm25", "k": 1, "length": length, "order": "identity", "exhausted": "restart",
        "tail": "trim", "join": "bos", "noise": 0.0, "max_uses": 1, "seed": 0, "dedup": "exact",
    }  # fmt: skip
    manifest = {
        "splice": __version__, "build": "made", "settings": settings,
        "tokenizer": {"name": "made", "vocab_size": VOCABULARY}, "join": {"bos_id": 0, "eos_id": None},
        "packs": [{"documents": 20 * examples, "parts": 1, "examples": examples}],
        "scores": {"steps": 19 * examples, "mean_step": 500.0, "mean_control": 100.0, "control_pairs": examples, "fallbacks": 0},
        "ledger": {"examples": examples, "tokens": examples * length, "padding": padding, "sources": {"made": source}},
        "shards": shards,
    }  # fmt: skip
    write_json(path / "manifest.json", manifest)
    return path


def _examples(rng: np.random.Generator, n: int, length: int) -> Iterator[Example]:
    for _ in range(n):
        sizes = np.maximum(rng.lognormal(7, 1, 1 + length // 200).astype(np.int64), 16)
        offsets = np.append(0, np.cumsum(sizes + 1))
        offsets = offsets[offsets < length - 1]
        sizes = np.diff(np.append(offsets, length)) - 1
        ids = (rng.zipf(1.2, length) % (VOCABULARY - 1) + 1).astype(np.int32)
        for a, b, size in zip(offsets[:-1], offsets[1:], np.minimum(sizes[:-1], sizes[1:]) // 10, strict=True):
            ids[b + 1 : b + 1 + size] = ids[a + 1 : a + 1 + size]
        ids[offsets] = 0
        scores = rng.lognormal(6, 1, len(offsets)).astype(np.float32)
        scores[0] = np.nan
        yield Example(
            number=int(rng.integers(10**9)),
            pack=0,
            input_ids=ids,
            padding=0,
            doc_ids=[f"made/{rng.integers(10**9)}" for _ in offsets],
            sources=["made"] * len(offsets),
            doc_offsets=offsets.astype(np.int32),
            doc_spans=np.stack([np.zeros(len(sizes)), sizes], axis=1).astype(np.int32),
            parents=np.arange(-1, len(offsets) - 1).astype(np.int32),
            scores=scores,
        )


def _show(report: dict) -> None:
    table = Table("dataset", title=f"splice report, {report['machine']['cpu']}")
    for name in ("MB", "examples", "wall s", "CPU s", "peak MiB", "page KB"):
        table.add_column(name, justify="right")
    for name, f in report["reports"].items():
        seconds = (f"{f[kind]:.2f}" for kind in ("wall_seconds", "cpu_seconds"))
        table.add_row(
            name, f"{f['dataset_bytes'] / 1e6:,.0f}", f"{f['examples']:,}", *seconds, f"{f['peak_bytes'] / 2**20:,.0f}",
            f"{f['page_bytes'] / 1e3:,.0f}",
        )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
