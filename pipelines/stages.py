"""The stages as tasks: what each is given, which it waits for, and what it leaves for those after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from splice.errors import SpliceError
from splice.files import replacing
from splice.settings import BuildSettings
from splice.sources import SourceSettings, Unit
from splice.task import Receipt, Task

from .run import Run, Stage

SEARCH_BLOCK = 1024  # documents of one search task
TOKENISED_BYTES = 40_000  # take about as long as one search in a pack of 50,000 documents


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


def source_settings(settings: BuildSettings) -> SourceSettings:
    """What of the settings the sources and filters need."""
    names = ("text_field", "id_field", "repo_field", "path_field", "max_line_bytes", "max_chars", "min_chars")
    return SourceSettings(glob=tuple(settings.glob), **{name: getattr(settings, name) for name in names})


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
