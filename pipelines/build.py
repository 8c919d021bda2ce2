"""`splice build`: the stages in order, each reused where its inputs and settings did not change.

    WORK/ingest-FP/   read/ assign/ packs/             by sources, filters, packs
    WORK/tokens-FP/   tokenizer/ tokens/ documents/    by ingest and tokenizer
    WORK/link-FP/     index/ graph/                    by ingest and retriever
    WORK/walk-FP/     plan/                            by tokens, link, k, length, order, policies, seed
    OUTPUT/data/      the shards                       by walk and shard size

FP is a fingerprint of the settings and of everything before, so several builds share a work directory, and what an
interrupted build left is found again by its markers.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from splice.pipelines.beam import load_beam, local_processes, run_tasks
from splice.pipelines.lock import locked
from splice.pipelines.processes import TaskProcesses
from splice.pipelines.progress import StageProgress
from splice.pipelines.supervise import watching_workers

from splice import __version__
from splice.errors import BuildFailed, SpliceError
from splice.files import LOCK, TEMPORARY, link_or_copy, read_json, replacing, sweep, write_json
from splice.ledger import imbalances, make_ledger
from splice.settings import BuildSettings
from splice.sources import SourceSettings, Unit, fingerprint, plan_units
from splice.stages.tokenizer import receipt_path
from splice.store.manifest import MANIFEST
from splice.task import Receipt, Task
from splice.tokenizer_files import SIDE_FILES

SEARCH_BLOCK = 1024  # documents of one search task
TOKENISED_BYTES = 40_000  # take about as long as one search in a pack of 50,000 documents


@dataclass
class StageTime:
    """What a stage cost in this run. reused: every task had its receipt already."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    tasks: int = 0
    reused: bool = True


@dataclass(frozen=True)
class Stage:
    """Tasks that run together, and the work in each (any unit)."""

    name: str
    tasks: list[Task]
    weights: list[int]


@dataclass
class Run:
    """One run of the driver: how tasks are run, and what the stages took."""

    settings: BuildSettings
    options: list[str]
    console: Console
    processes: TaskProcesses
    stages: dict[str, StageTime] = field(default_factory=dict)

    def stage(self, name: str, tasks: list[Task], weights: Sequence[int], threads: int = 0) -> list[Receipt]:
        """Run what has no receipt yet; the receipts of all tasks, in order.

        weights: the work in each, for the progress. threads: what a task may use inside; 0: its share of the workers.
        """
        times = self.stages.setdefault(name, StageTime())
        todo = [(task, weight) for task, weight in zip(tasks, weights, strict=True) if read_json(task.marker) is None]
        times.tasks += len(todo)
        if todo:
            times.reused = False
            workers = self.settings.worker_count
            wall, cpu = time.monotonic(), self.cpu_seconds()
            waiting = [task for task, _ in todo]
            with StageProgress(self.console, name, waiting, [w for _, w in todo]), watching_workers(name):
                run_tasks(waiting, self.options, threads or max(1, workers // len(todo)))
            times.wall_seconds += time.monotonic() - wall
            times.cpu_seconds += self.cpu_seconds() - cpu
        return [read_json(task.marker) for task in tasks]

    def together(self, stages: list[Stage]) -> dict[str, list[Receipt]]:
        """Run stages, each after those it needs, as one where there are workers to share; receipts by stage.

        Apart, each would leave workers idle: while one tokenizer is trained, at the last blocks of a search.
        """
        todo = [stage for stage in stages if any(read_json(task.marker) is None for task in stage.tasks)]
        if self.settings.worker_count > 1 and len(todo) > 1:
            tasks = [task for stage in todo for task in stage.tasks]
            weights = [weight for stage in todo for weight in stage.weights]
            self.stage(" + ".join(stage.name for stage in todo), tasks, weights, threads=1)
        else:
            todo = []
        return {
            stage.name: [read_json(task.marker) for task in stage.tasks]
            if stage in todo
            else self.stage(stage.name, stage.tasks, stage.weights)
            for stage in stages
        }

    def cpu_seconds(self) -> float:
        """Of this process, of children that have ended, and of the tasks that worker processes have ended."""
        return _cpu_seconds() + self.processes.cpu_seconds


def build(settings: BuildSettings, options: list[str], console: Console, processes: TaskProcesses) -> dict[str, Any]:
    """Build the dataset `settings` describe; gives its manifest. Raises SpliceError, before any work where it can.

    options: Beam's (see runner_options); processes: where tasks that hold the GIL run.
    """
    assert settings.output is not None
    output = settings.output.absolute()
    work = (settings.work or output / "work").absolute()
    started = time.monotonic(), _cpu_seconds()
    listing = processes.start("prepare", list_inputs, settings.sources, source_settings(settings))
    load_beam()
    units, inputs = listing()
    directories = stage_directories(settings, inputs, work)
    check_tokenizer(settings, directories["tokens"])
    _check_writable(output, "--output")
    _check_writable(work, "--work")
    with ExitStack() as stack:
        claim(settings, directories["write"], output, write=False)  # a refusal leaves nothing behind
        stack.enter_context(locked(output))
        if work != output:
            stack.enter_context(locked(work))
        claim(settings, directories["write"], output, write=True)
        for leftover in output.glob(f"{TEMPORARY}*"):
            leftover.unlink()
        manifest = finished(output, directories["write"])
        if manifest is not None:
            console.print(f"{output}: complete already, nothing to do")
            return manifest
        for directory in (output / "data", output / "plan", output / "graph", *directories.values()):
            sweep(directory)
        stack.enter_context(local_processes(processes))
        run = Run(settings, options, console, processes)
        run.stages["prepare"] = StageTime(time.monotonic() - started[0], run.cpu_seconds() - started[1], 1, False)
        if settings.worker_count > 1:  # half a second of imports, while processes read and this one waits
            threading.Thread(target=import_engines, args=(settings,), daemon=True).start()
        try:
            ingested = ingest(run, units, directories["ingest"])
            tokens, starts = tokenise_and_link(run, ingested, directories)
        except SpliceError as refusal:
            if refusal.exit_code == SpliceError.exit_code and not (output / "data").exists():
                (output / "build.json").unlink(missing_ok=True)  # the output is free for what the user mends
            raise
        plans = plan(run, ingested, tokens, starts, directories)
        shards = write(run, ingested, tokens, plans, directories, output)
        return finish(run, ingested, tokens, plans, shards, directories, output, started)


def import_engines(settings: BuildSettings) -> None:
    """Import what tokenising and linking need, before their stages do."""
    import awkward  # noqa: F401 - gigatoken's results
    import gigatoken  # noqa: F401

    import splice.stages.tokenise

    if settings.retriever == "bm25":
        import splice.bm25
        import splice.stages.search  # noqa: F401


def list_inputs(sources: Sequence[str], settings: SourceSettings) -> tuple[list[Unit], str]:
    """The units of the sources, and their fingerprint."""
    units = plan_units(sources, settings)
    return units, fingerprint(units)


def source_settings(settings: BuildSettings) -> SourceSettings:
    """What of the settings the sources and filters need."""
    names = ("text_field", "id_field", "repo_field", "path_field", "max_line_bytes", "max_chars", "min_chars")
    return SourceSettings(glob=tuple(settings.glob), **{name: getattr(settings, name) for name in names})


def check_tokenizer(settings: BuildSettings, tokens_directory: Path | None = None) -> None:
    """Raise SpliceError, before any work, for a tokenizer that cannot be loaded or lacks what `join` writes."""
    from splice.tokenizer import load_tokenizer

    if settings.tokenizer is not None and not (tokens_directory and receipt_path(tokens_directory).exists()):
        load_tokenizer(settings.tokenizer, fast=False).require(settings.join)


def _check_writable(directory: Path, flag: str) -> None:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SpliceError(f"{there}: not a directory that can be written to; give another {flag}")


def stage_directories(settings: BuildSettings, inputs: str, work: Path) -> dict[str, Path]:
    """Stage -> its directory, named by its fingerprint; "write" names nothing on disk but the whole build."""
    ingest = settings.fingerprint("ingest", inputs)
    tokens = settings.fingerprint("tokens", f"{ingest} {_tokenizer_hash(settings)}")
    link = settings.fingerprint("link", ingest)
    walk = settings.fingerprint("walk", f"{tokens} {link}")
    write = settings.fingerprint("write", walk)
    prints = {"ingest": ingest, "tokens": tokens, "link": link, "walk": walk, "write": write}
    return {stage: work / f"{stage}-{fingerprint}" for stage, fingerprint in prints.items()}


def claim(settings: BuildSettings, build_directory: Path, output: Path, write: bool) -> None:
    """Mark `output` as this build's. Raises SpliceError when it holds another build, or files of someone else."""
    path = output / "build.json"
    mine = {
        "build": build_directory.name,
        "settings": settings.model_dump(mode="json", exclude={"output", "work", "workers"}),
    }
    held = read_json(path)
    if held is None:
        present = [p.name for p in output.iterdir()] if output.is_dir() else []
        strange = [n for n in present if n not in ("work", LOCK) and not n.startswith(TEMPORARY)]
        if strange:
            raise SpliceError(f"{output}: not empty (holds {strange[0]}) and no build of splice; give another --output")
        if write:
            write_json(path, mine)
    elif held["build"] != mine["build"]:
        theirs = held["settings"]
        changed = [f"{n}: {theirs.get(n)} there, {v} asked" for n, v in mine["settings"].items() if theirs.get(n) != v]
        raise SpliceError(
            f"{output}: holds a build with other "
            + (f"settings ({'; '.join(changed[:4])})" if changed else "input: its source files have changed since")
            + ". Give another --output (--work shares what both have in common), or remove the directory"
        )


def finished(output: Path, build_directory: Path) -> dict[str, Any] | None:
    """The manifest of a build that is complete, or None."""
    manifest = read_json(output / MANIFEST)
    if manifest is None or manifest["build"] != build_directory.name:
        return None
    sizes = {shard["file"]: shard["bytes"] for shard in manifest["shards"]}
    whole = all(_size(output / "data" / name) == size for name, size in sizes.items())
    return manifest if whole else None


@dataclass(frozen=True)
class Ingested:
    """What ingest leaves for the stages after it. parts: the bytes of each file of each pack; documents: per pack."""

    directory: Path
    read: list[Receipt]
    assigned: Receipt
    part_bytes: list[list[int]]
    documents: list[int]

    @property
    def parts(self) -> list[int]:
        """The number of files of each pack."""
        return [len(sizes) for sizes in self.part_bytes]


@dataclass(frozen=True)
class Tokens:
    """What tokenising leaves: the tokenizer's receipt and those of the packs' parts."""

    directory: Path
    tokenizer: Receipt
    parts: list[Receipt]
    bos_id: int | None
    eos_id: int | None


def ingest(run: Run, units: list[Unit], directory: Path) -> Ingested:
    """Read, filter and deduplicate the sources, and gather the documents of each pack."""
    s = run.settings
    for number, unit in enumerate(units):  # thousands of file names each: too much to travel in a descriptor
        path = directory / "units" / f"{number:05d}.json"
        if not path.exists():
            with replacing(path) as temporary:
                temporary.write_text(unit.to_json(), encoding="utf-8")
    args = {"settings": asdict(source_settings(s)), "strict": s.strict}
    reads = [Task("read", f"{n:05d}", str(directory), {**args, "number": n}) for n in range(len(units))]
    read = run.stage("read", reads, [unit.bytes for unit in units])
    assign_args = {
        "units": [[receipt["source"], receipt["kept"]] for receipt in read],
        **{name: getattr(s, name) for name in ("dedup", "pack_documents", "max_repo_bytes")},
    }
    assigned = run.stage("assign", [Task("assign", "all", str(directory), assign_args)], [1])[0]
    sources = [unit.source for unit in units]
    cuts = [(p, n, *part) for p, parts in enumerate(assigned["packs"]) for n, part in enumerate(parts)]
    tasks = [
        Task(
            "gather",
            f"{p:05d}-{n:04d}",
            str(directory),
            {"pack": p, "part": n, "start": a, "stop": b, "sources": sources},
        )
        for p, n, a, b, _ in cuts
    ]
    run.stage("gather", tasks, [size for *_, size in cuts])
    for leftover in (directory / "read").glob("*.arrow"):  # every document is in a pack or in refused.parquet
        leftover.unlink()
    sizes = [[size for *_, size in parts] for parts in assigned["packs"]]
    return Ingested(directory, read, assigned, sizes, [sum(b - a for a, b, _ in parts) for parts in assigned["packs"]])


def tokenise_and_link(
    run: Run, ingested: Ingested, directories: dict[str, Path]
) -> tuple[Tokens, list[list[int]] | None]:
    """Tokenise every pack and find all its documents' neighbours: neither needs the other.

    Gives the tokens, and per pack where the blocks of its graph start (None where the retriever has no graph).
    """
    s = run.settings
    directory = directories["tokens"]
    stages = [tokenizer_stage(s, ingested, directory), tokenise_stage(s, ingested, directory)]
    starts = None
    if s.retriever != "random":
        starts = [list(range(0, n, SEARCH_BLOCK)) for n in ingested.documents]
        # Between the two, so that the workers search until there is a tokenizer.
        stages.insert(1, index_stage(s, ingested, directories["link"]))
        stages.append(search_stage(s, ingested, starts, directories["link"]))
    receipts = run.together(stages)
    (tokenizer,) = receipts["tokenizer"]
    bos_id, eos_id = (_separator(which, s, tokenizer) for which in ("bos", "eos"))
    return Tokens(directory, tokenizer, receipts["tokenise"], bos_id, eos_id), starts


def tokenizer_stage(s: BuildSettings, ingested: Ingested, directory: Path) -> Stage:
    """One task."""
    args = {"ingest": str(ingested.directory), "tokenizer": s.tokenizer, "vocab_size": s.vocab_size}
    return Stage("tokenizer", [Task("tokenizer", "all", str(directory), args)], [sum(ingested.documents)])


def tokenise_stage(s: BuildSettings, ingested: Ingested, directory: Path) -> Stage:
    """A task for every part of every pack."""
    # The tokenizer takes one call at a time, so each may have all the workers.
    base = {"ingest": str(ingested.directory), "threads": s.worker_count}
    cuts = [(p, n, size) for p, sizes in enumerate(ingested.part_bytes) for n, size in enumerate(sizes)]
    tasks = [
        Task("tokenise", f"{p:05d}-{n:04d}", str(directory), {**base, "pack": p, "part": n}, after="tokenizer")
        for p, n, _ in cuts
    ]
    return Stage("tokenise", tasks, [size // TOKENISED_BYTES for *_, size in cuts])


def index_stage(s: BuildSettings, ingested: Ingested, directory: Path) -> Stage:
    """A task for every pack."""
    bm25 = {name: getattr(s, name) for name in ("k1", "b", "query_tf", "max_df")}
    base = {
        "ingest": str(ingested.directory),
        "bm25": bm25,
        "keep": len(ingested.parts) == 1,
        "threads": max(1, s.worker_count // (len(ingested.parts) + 1)),  # one trains the tokenizer
    }
    args = [{**base, "pack": p, "parts": n} for p, n in enumerate(ingested.parts)]
    tasks = [Task("index", f"{p:05d}", str(directory), arg) for p, arg in enumerate(args)]
    return Stage("index", tasks, ingested.documents)


def search_stage(s: BuildSettings, ingested: Ingested, starts: list[list[int]], directory: Path) -> Stage:
    """A task for every block of every pack."""
    blocks = [(p, a, min(a + SEARCH_BLOCK, ingested.documents[p])) for p, block in enumerate(starts) for a in block]
    tasks = [
        Task(
            "search",
            f"{p:05d}-{a:08d}",
            str(directory),
            {"pack": p, "start": a, "stop": b, "neighbours": s.neighbours},
            after="index",
        )
        for p, a, b in blocks
    ]
    return Stage("search", tasks, [b - a for _, a, b in blocks])


def plan(
    run: Run, ingested: Ingested, tokens: Tokens, starts: list[list[int]] | None, directories: dict[str, Path]
) -> list[Receipt]:
    """Walk every pack's graph."""
    s = run.settings
    walk = {name: getattr(s, name) for name in ("k", "length", "order", "exhausted", "tail", "seed")}
    shared = {
        "ingest": str(ingested.directory),
        "link": None if starts is None else str(directories["link"]),
        "tokens": str(tokens.directory),
        "before": int(tokens.bos_id is not None),
        "after": int(tokens.eos_id is not None),
        "walk": walk,
    }
    tasks = [
        Task(
            "plan",
            f"{p:05d}",
            str(directories["walk"]),
            {**shared, "pack": p, "parts": n, "starts": starts and starts[p]},
        )
        for p, n in enumerate(ingested.parts)
    ]
    return run.stage("walk", tasks, ingested.documents)


def write(
    run: Run, ingested: Ingested, tokens: Tokens, plans: list[Receipt], directories: dict[str, Path], output: Path
) -> list[Receipt]:
    """Write the shards."""
    s = run.settings
    examples = sum(receipt["examples"] for receipt in plans)
    per_shard = max(1, s.shard_tokens // s.length)
    count = max(1, -(-examples // per_shard))
    shared = {
        "ingest": str(ingested.directory),
        "tokens": str(tokens.directory),
        "walk": str(directories["walk"]),
        "output": str(output),
        "packs": [[n, receipt["examples"]] for n, receipt in zip(ingested.parts, plans, strict=True)],
        "seed": s.seed,
        "length": s.length,
        "bos_id": tokens.bos_id,
        "eos_id": tokens.eos_id,
        "pad_id": tokens.tokenizer["pad_id"],
        "retriever": s.retriever,
    }
    edges = [examples * i // count for i in range(count + 1)]  # shards of equal size: none is left nearly empty
    tasks = [
        Task(
            "write",
            f"{i:05d}",
            str(output / ".write"),
            {**shared, "start": a, "stop": b, "file": f"train-{i:05d}-of-{count:05d}.parquet"},
        )
        for i, (a, b) in enumerate(pairwise(edges))
    ]
    for task in tasks:  # a shard that was removed by hand is written again
        if not (output / "data" / task.args["file"]).is_file():
            task.marker.unlink(missing_ok=True)
    return run.stage("write", tasks, [b - a for a, b in pairwise(edges)])


def finish(
    run: Run,
    ingested: Ingested,
    tokens: Tokens,
    plans: list[Receipt],
    shards: list[Receipt],
    directories: dict[str, Path],
    output: Path,
    started: tuple[float, float],
) -> dict[str, Any]:
    """Gather plan, graph, documents, tokenizer and quarantine beside the shards, balance the ledger, write the manifest."""
    s = run.settings
    ledger = make_ledger(s.length, ingested.read, _refused(ingested.directory), tokens.parts, plans, shards)
    wrong = imbalances(ledger)
    if wrong:
        raise BuildFailed("the ledger does not balance, which is a fault of splice: " + "; ".join(wrong))
    _keep(directories["walk"] / "plan", output / "plan")
    _keep(directories["link"] / "graph", output / "graph")
    _keep(tokens.directory / "documents", output / "documents")
    _keep(tokens.directory / "tokenizer", output / "tokenizer")
    link_or_copy(ingested.directory / "assign" / "refused.parquet", output / "documents" / "refused.parquet")
    _gather_quarantine(ingested.directory / "read", output / "quarantine.jsonl")
    steps, control = (sum(p[name] for p in plans) for name in ("steps", "control_pairs"))
    manifest = {
        "splice": __version__,
        "build": directories["write"].name,
        "settings": {**s.model_dump(mode="json", exclude={"output", "work", "workers"})},
        "versions": _versions(),
        "input_hash": ingested.assigned["hash"],
        "tokenizer": tokens.tokenizer,
        "join": {
            "bos_id": tokens.bos_id,
            "eos_id": tokens.eos_id,
        },
        "packs": [
            {"documents": n, "parts": parts, "examples": p["examples"]}
            for n, parts, p in zip(ingested.documents, ingested.parts, plans, strict=True)
        ],
        "scores": {
            "steps": steps,
            "mean_step": sum(p["step_score_sum"] for p in plans) / steps if steps else None,
            "control_pairs": control,
            "mean_control": sum(p["control_score_sum"] for p in plans) / control if control else None,
            "fallbacks": sum(p["fallbacks"] for p in plans),
            "renewed": sum(p["renewed"] for p in plans),
        },
        "ledger": ledger,
        "shards": [{name: shard[name] for name in ("file", "examples", "bytes", "sha256")} for shard in shards],
        "run": {
            "workers": s.worker_count,
            "wall_seconds": round(time.monotonic() - started[0], 3),
            "cpu_seconds": round(run.cpu_seconds() - started[1], 3),
            "peak_rss_bytes": _peak_rss_bytes(),
            "stages": {name: asdict(times) for name, times in run.stages.items()},
        },
    }
    write_json(output / MANIFEST, manifest, sync=True)
    shutil.rmtree(output / ".write", ignore_errors=True)
    return manifest


def _separator(which: str, settings: BuildSettings, tokenizer: Receipt) -> int | None:
    """The id of the special token that `join` writes before (bos) or after (eos) a document, or None."""
    if which not in settings.join:
        return None
    number = tokenizer[f"{which}_id"]
    if number is None:
        raise SpliceError(
            f"tokenizer {tokenizer['name']} has no {which.upper()} token, which --join {settings.join} asks for; "
            "choose another --join"
        )
    return number


def _refused(directory: Path) -> Counter[tuple[str, str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(directory / "assign" / "refused.parquet", columns=["source", "reason"])
    return Counter(zip(table.column("source").to_pylist(), table.column("reason").to_pylist(), strict=True))


def _keep(source: Path, target: Path) -> None:
    """Link every file of `source` into `target`, which then holds these and nothing else."""
    names = {path.name for path in source.iterdir()} if source.is_dir() else set()
    for stale in target.iterdir() if target.is_dir() else ():
        if stale.name not in names and stale.name != "refused.parquet":
            stale.unlink()
    for name in sorted(names):
        link_or_copy(source / name, target / name)


def _gather_quarantine(directory: Path, target: Path) -> None:
    with replacing(target) as temporary, open(temporary, "wb") as out:
        for path in sorted(directory.glob("*.quarantine.jsonl")):
            out.write(path.read_bytes())


def _tokenizer_hash(settings: BuildSettings) -> str:
    """A content hash of a tokenizer given by path, so that a changed file is a changed input."""
    if settings.tokenizer is None or not Path(settings.tokenizer).expanduser().exists():
        return settings.tokenizer or ""
    path = Path(settings.tokenizer).expanduser()
    beside = [p for name in SIDE_FILES if (p := path.parent / name).is_file()]  # they say which ids BOS and EOS have
    files = (
        sorted(p for p in path.iterdir() if p.is_file() and p.stat().st_size < 2**28)
        if path.is_dir()
        else [path, *beside]
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("apache-beam", "gigatoken", "numba", "numpy", "pyarrow", "tokenizers")}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
