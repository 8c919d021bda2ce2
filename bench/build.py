"""What a whole build costs, beside the tokenisation that every pipeline has to do anyway.

    python bench/build.py --corpus DIR [--runs 3] [--json out.json] [--skip-peers]

One run on one machine, over the .c and .h files of 300 to 30,000 characters below DIR:

* splice build, BM25 k=1 at 32K, one and two workers; random packing at 32K, two workers. Reading, filtering,
  exact deduplication, tokenising, linking, walking and writing are all in it; so is training the default 32k tokenizer,
  but for the rows "tokenizer given", which get the trained one with --tokenizer.
* Hugging Face tokenizers: encode_batch_fast over the same documents, already in memory, with the tokenizer that the
  build trained; nothing else.
* datatrove: its JSONL reader and DocumentTokenizer (tokenise, shuffle, write .ds files) over the same documents, the
  same tokenizer, one task.

CPU seconds are those of the process and all its children; peak memory is the process tree's summed PSS. Builds are run
--runs times in turn and the medians are given; the two peers, being long, once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from measure import Measured, machine, median, run
from rich.console import Console
from rich.table import Table

HF = """
import sys, pyarrow as pa
from tokenizers import Tokenizer
from pathlib import Path
tokenizer = Tokenizer.from_file(sys.argv[2])
texts = []
for part in sorted(Path(sys.argv[1]).glob("*.arrow")):
    texts += [text.as_py().decode() for text in pa.ipc.open_file(pa.memory_map(str(part))).get_batch(0).column("text")]
import resource, time
before, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
tokens = 0
for start in range(0, len(texts), 1024):
    tokens += sum(map(len, tokenizer.encode_batch_fast(texts[start : start + 1024], add_special_tokens=False)))
after = resource.getrusage(resource.RUSAGE_SELF)
print(time.monotonic() - started, sum(after[:2]) - sum(before[:2]), after.ru_maxrss * 1024, tokens)
"""

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
if __name__ == "__main__":
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(sys.argv[1], glob_pattern="*.jsonl"),
            DocumentTokenizer(sys.argv[2] + "/tokens", tokenizer_name_or_path=sys.argv[3], eos_token="</s>",
                              local_working_dir=sys.argv[2] + "/scratch", save_filename="corpus"),
        ],
        tasks=1, logging_dir=sys.argv[2] + "/logs",
    ).run()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--skip-peers", action="store_true")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="splice-bench-") as scratch:
        where = Path(scratch)
        _build(arguments.corpus, where / "warm", 2, "bm25")  # compiles the engine and fills the page cache
        manifests: dict[str, dict] = {}
        given = where / "warm" / "tokenizer"
        runs: dict[str, list[Measured]] = {}
        for _ in range(arguments.runs):  # in turn: a shared machine is fast at one hour and slow at the next
            for name, workers, retriever, tokenizer in (
                ("bm25", 2, "bm25", None),
                ("bm25, one worker", 1, "bm25", None),
                ("bm25, tokenizer given", 2, "bm25", given),
                ("random", 2, "random", None),
                ("random, tokenizer given", 2, "random", given),
            ):
                shutil.rmtree(where / "out", ignore_errors=True)
                runs.setdefault(name, []).append(_build(arguments.corpus, where / "out", workers, retriever, tokenizer))
                console.print(f"{name}: {runs[name][-1]}", highlight=False)
                manifests[name] = json.loads((where / "out" / "manifest.json").read_text())
        figures = {name: median(measured) for name, measured in runs.items()}
        pairs = zip(runs["bm25, one worker"], runs["bm25"], strict=True)
        scaling = statistics.median(one.wall_seconds / two.wall_seconds for one, two in pairs)
        if not arguments.skip_peers:
            figures["HF tokenizers, tokenising only"] = _hugging_face(where / "warm")
            figures["datatrove, tokenise and write"] = _datatrove(where / "warm", where / "datatrove")
    result = {
        "machine": machine("tokenizers", "datatrove", "gigatoken", "numba", "pyarrow", "apache-beam"),
        "figures": {name: asdict(figure) for name, figure in figures.items()},
        "two_workers_over_one": scaling,
        "runs": {name: [asdict(m) for m in measured] for name, measured in runs.items()},
        "stages": {name: manifest["run"]["stages"] for name, manifest in manifests.items()},
        "ledger": manifests["bm25"]["ledger"],
        "scores": manifests["bm25"]["scores"],
    }
    _show(result)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def _build(corpus: Path, output: Path, workers: int, retriever: str, tokenizer: Path | None = None) -> Measured:
    return run(
        [sys.executable, "-m", "splice.cli", "build", corpus, "--glob", "*.c", "--glob", "*.h", "--min-chars", 300,
         "--retriever", retriever, "--workers", workers, "--output", output,
         *(["--tokenizer", tokenizer] if tokenizer else [])]
    )  # fmt: skip


def _hugging_face(built: Path) -> Measured:
    (ingest,) = (built / "work").glob("ingest-*")
    said = subprocess.run(
        [sys.executable, "-c", HF, ingest / "packs", built / "tokenizer" / "tokenizer.json"],
        capture_output=True, text=True, check=True, env={"TOKENIZERS_PARALLELISM": "true"},
    ).stdout.split()  # fmt: skip
    return Measured(float(said[0]), float(said[1]), int(said[2]))


def _datatrove(built: Path, scratch: Path) -> Measured:
    import pyarrow as pa

    (ingest,) = (built / "work").glob("ingest-*")
    (scratch / "input").mkdir(parents=True)
    with open(scratch / "input" / "corpus.jsonl", "w") as lines:
        for part in sorted((ingest / "packs").glob("*.arrow")):
            batch = pa.ipc.open_file(pa.memory_map(str(part))).get_batch(0)
            for name, text in zip(batch.column("id"), batch.column("text"), strict=True):
                lines.write(json.dumps({"id": name.as_py(), "text": text.as_py().decode()}) + "\n")
    program = scratch / "program.py"
    program.write_text(DATATROVE)
    return run([sys.executable, program, scratch / "input", scratch, built / "tokenizer" / "tokenizer.json"])


def _show(result: dict) -> None:
    console = Console(width=110)
    figures = {name: Measured(**figure) for name, figure in result["figures"].items()}
    reference = figures.get("HF tokenizers, tokenising only")
    table = Table("", title=f"{result['machine']['cpu']}, {result['machine']['cores']} cores")
    for name in ("CPU s", "wall s", "peak GiB", "CPU over HF's"):
        table.add_column(name, justify="right")
    for name, f in figures.items():
        ratio = f"{f.cpu_seconds / reference.cpu_seconds:.3f}" if reference else ""
        table.add_row(name, f"{f.cpu_seconds:.1f}", f"{f.wall_seconds:.1f}", f"{f.peak_bytes / 2**30:.2f}", ratio)
    console.print(table)
    one, two = ([m["wall_seconds"] for m in result["runs"][name]] for name in ("bm25, one worker", "bm25"))
    pairs = [a / b for a, b in zip(one, two, strict=True)]
    console.print(
        f"two workers over one: {result['two_workers_over_one']:.2f} times as fast in wall time "
        f"(median of the pairs, {min(pairs):.2f} to {max(pairs):.2f})"
    )
    stages = Table("stage (last run)", title="CPU seconds a stage")
    for name in result["stages"]:
        stages.add_column(name, justify="right")
    for stage in dict.fromkeys(stage for stages_of_run in result["stages"].values() for stage in stages_of_run):
        cells = [result["stages"][name].get(stage) for name in result["stages"]]
        stages.add_row(stage, *(f"{cell['cpu_seconds']:.1f}" if cell else "" for cell in cells))
    console.print(stages)
    link = sum(result["stages"]["bm25, one worker"][stage]["cpu_seconds"] for stage in ("index", "search"))
    walk = result["stages"]["bm25, one worker"]["walk"]["cpu_seconds"]
    console.print(f"walk, fallback and compaction: {walk / link:.2f} of link's CPU time")


if __name__ == "__main__":
    main()
