"""Near-duplicates: what finding them costs, beside datatrove's MinHash and beside tokenising the same documents.

    python bench/dedup.py --corpus DIR [--runs 3] [--peer-documents 10000] [--json out.json]

Documents are those that `splice build` keeps of the .c and .h files of 300 to 30,000 characters below DIR, in memory.

* splice: signatures (5-word shingles, 128 permutations) and clusters at a similarity of 0.8, one thread.
* the build's own tokenisation (gigatoken) and Hugging Face tokenizers, with the tokenizer the build trained: the work that
  near-duplicate removal is set against. Hugging Face's is given --peer-documents and reckoned up by bytes.
* datatrove: MinhashDedupSignature, Buckets and Cluster over JSONL, 5-word shingles, 18 bands of 7, one task, on --peer-documents,
  reckoned up by bytes; its time includes reading the JSONL.

CPU seconds; medians of --runs, the peers once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from measure import machine, run
from rich.console import Console
from rich.table import Table

from splice.near import first_of_cluster, signatures
from splice.packs import open_pack
from splice.tokenizer import load_tokenizer

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import JsonlReader
if __name__ == "__main__":
    config = MinhashConfig(n_grams=5, num_buckets=18, hashes_per_bucket=7)
    where = sys.argv[2]
    for name, tasks, steps in (
        ("signatures", 1, [JsonlReader(sys.argv[1], glob_pattern="*.jsonl"),
                           MinhashDedupSignature(where + "/signatures", config, language="eng")]),
        ("buckets", 18, [MinhashDedupBuckets(where + "/signatures", where + "/buckets", config=config)]),
        ("clusters", 1, [MinhashDedupCluster(where + "/buckets", where + "/remove", config=config)]),
    ):
        LocalPipelineExecutor(pipeline=steps, tasks=tasks, workers=1, logging_dir=where + "/logs/" + name).run()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer-documents", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="splice-bench-") as scratch:
        out = Path(scratch) / "out"
        run(
            [sys.executable, "-m", "splice.cli", "build", arguments.corpus, "--glob", "*.c", "--glob", "*.h",
             "--min-chars", 300, "--retriever", "random", "--workers", 2, "--pack-documents", 10**6, "--output", out]
        )  # fmt: skip
        (ingest,) = (out / "work").glob("ingest-*")
        pack = open_pack(str(ingest), 0, len(list((ingest / "packs").glob("*.arrow"))))
        texts = pack.texts
        size = sum(int(offsets[-1] - offsets[0]) for _, offsets in texts)
        tokenizer = load_tokenizer(str(out / "tokenizer"))
        few = _first(texts, arguments.peer_documents)
        share = sum(map(len, few)) / size
        figures: dict[str, list[float]] = {}
        for _ in range(arguments.runs + 1):  # the first compiles, and is dropped
            figures.setdefault("splice, signatures", []).append(_cpu(lambda: _signatures(texts)))
            tables = _signatures(texts)
            kept = np.ones(pack.n_documents, bool)
            figures.setdefault("splice, clusters", []).append(_cpu(lambda t=tables, k=kept: _clusters(t, k)))
            figures.setdefault("tokenising, gigatoken", []).append(
                _cpu(lambda: [tokenizer.encode_arrow(data, offsets) for data, offsets in texts])
            )
        result = {name: statistics.median(seconds[1:]) for name, seconds in figures.items()}
        result["tokenising, HF tokenizers"] = _cpu(lambda: tokenizer.encode_reference(few)) / share
        result["datatrove, MinHash"] = _datatrove(few, Path(scratch)) / share
        found = int((_clusters(tables, kept) != np.arange(pack.n_documents)).sum())
    result["splice, all"] = result["splice, signatures"] + result["splice, clusters"]
    report = {
        "machine": machine("rensa", "datatrove", "gigatoken", "tokenizers", "numba"),
        "documents": pack.n_documents, "bytes": size, "near_duplicates": found, "peer_share": share,
        "cpu_seconds": result,
    }  # fmt: skip
    _show(report)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _signatures(texts: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    return [signatures(data, offsets, 5) for data, offsets in texts]


def _clusters(tables: list[np.ndarray], kept: np.ndarray) -> np.ndarray:
    return first_of_cluster(tables, kept, 0.8)


def _first(texts: list[tuple[np.ndarray, np.ndarray]], n: int) -> list[bytes]:
    """Every so many-th document, n of them."""
    documents = [data[a:b].tobytes() for data, offsets in texts for a, b in pairwise(offsets.tolist())]
    return documents[:: max(1, len(documents) // n)][:n]


def _cpu(work: object) -> float:
    before = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - before


def _datatrove(texts: list[bytes], scratch: Path) -> float:
    (scratch / "input").mkdir()
    with open(scratch / "input" / "corpus.jsonl", "w") as lines:
        for number, text in enumerate(texts):
            lines.write(json.dumps({"id": str(number), "text": text.decode()}) + "\n")
    program = scratch / "program.py"
    program.write_text(DATATROVE)
    return run([sys.executable, program, scratch / "input", scratch / "datatrove"]).cpu_seconds


def _show(report: dict) -> None:
    title = f"{report['documents']:,} documents, {report['bytes'] / 1e6:,.0f} MB, {report['near_duplicates']:,} near-duplicates"
    table = Table("", title=f"{title}, {report['machine']['cpu']}")
    for name in ("CPU s", "MB per CPU-second", "of splice's"):
        table.add_column(name, justify="right")
    ours = report["cpu_seconds"]["splice, all"]
    for name, seconds in sorted(report["cpu_seconds"].items(), key=lambda item: item[1]):
        table.add_row(name, f"{seconds:.1f}", f"{report['bytes'] / 1e6 / seconds:,.0f}", f"{seconds / ours:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
