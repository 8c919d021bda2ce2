"""The stages as tasks: what each is given, which it waits for, and what it leaves for those after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splice.errors import SpliceError
from splice.files import replacing, write_json, write_texts
from splice.packs import PACKS_AT_HAND
from splice.settings import BuildSettings
from splice.sources import SourceSettings, Unit
from splice.stages.centroids import MOST_CLUSTERS, PACK_CLUSTERS, SAMPLE_BYTES
from splice.stages.plan import packs_path
from splice.storage import exists, is_remote, names, remove, remove_all
from splice.store.records import starts_path
from splice.task import Receipt, Task
from splice.tokenizer import load_tokenizer

from .link import Linked, link_stages, linked
from .run import Run, Stage

if TYPE_CHECKING:
    from splice.contamination import Contamination
    from splice.encoder import Located

SOURCE_SETTINGS = ("text_field", "id_field", "repo_field", "path_field", "max_line_bytes", "max_chars", "min_chars")
WALK_SETTINGS = ("k", "length", "order", "exhausted", "tail", "seed", "noise", "max_uses")
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


def ingest(run: Run, units: list[Unit], contamination: Contamination | None, directory: Path) -> Ingested:
    """Read, filter and deduplicate the sources, and gather the documents of each pack."""
    s = run.settings
    ngrams = directory / "contamination.npz"
    if contamination is not None and not exists(ngrams):
        with replacing(ngrams) as temporary:
            contamination.save(temporary)
    there = names(directory / "units")
    described = {f"{number:05d}.json": unit for number, unit in enumerate(units)}
    # Thousands of file names each: too much to travel in a descriptor.
    write_texts(directory / "units", {name: unit.to_json() for name, unit in described.items() if name not in there})
    args = {
        "settings": asdict(source_settings(s)),
        "strict": s.strict,
        "shingle_words": s.shingle_words if s.dedup == "near" else None,
        "contamination": contamination and str(ngrams),
    }
    reads = [
        Task("read", f"{n:05d}", str(directory), {**args, "number": n, "sample_bytes": sample_bytes})
        for n, sample_bytes in enumerate(_samples(s, units))
    ]
    read = run.stage("read", reads, [unit.bytes for unit in units])
    for lacking in check_provenance(s, read):
        run.console.print(f"{lacking}: they are together as one group", highlight=False, markup=False)
    documents = sum(receipt["kept"] for receipt in read)
    if s.pack_by == "cluster" and documents > s.pack_documents:
        run.stage("centroids", [centroids_task(s, documents, len(units), directory)], [1])
        tasks = [Task("cluster", f"{n:05d}", str(directory), {"number": n}) for n in range(len(units))]
        run.stage("cluster", tasks, [receipt["bytes"] for receipt in read])
    packing = ("dedup", "near_threshold", "pack_by", "pack_documents", "max_repo_bytes")
    assign_args = {
        "units": [[receipt["source"], receipt["kept"]] for receipt in read],
        **{name: getattr(s, name) for name in packing},
    }
    assigned = run.stage("assign", [Task("assign", "all", str(directory), assign_args)], [1])[0]
    cuts = [(p, n, *part) for p, parts in enumerate(assigned["packs"]) for n, part in enumerate(parts)]
    tasks = [
        Task(
            "gather",
            f"{p:05d}-{n:04d}",
            str(directory),
            {"pack": p, "part": n, "start": a, "stop": b},
        )
        for p, n, a, b, _ in cuts
    ]
    run.stage("gather", tasks, [size for *_, size in cuts])
    # Every document is in a pack or in refused.parquet.
    leftovers = (name for name in names(directory / "read") if name.endswith((".arrow", ".npy")))
    remove_all(directory / "read", leftovers)
    sizes = [[size for *_, size in parts] for parts in assigned["packs"]]
    return Ingested(directory, read, assigned, sizes, [sum(b - a for a, b, _ in parts) for parts in assigned["packs"]])


def _samples(s: BuildSettings, units: list[Unit]) -> list[int]:
    """Bytes of each unit's documents that clusters are trained on: its share of the input."""
    if s.pack_by != "cluster":
        return [0] * len(units)
    sizes = [max(1, unit.bytes) for unit in units]
    return [max(1, SAMPLE_BYTES * size // sum(sizes)) for size in sizes]


def centroids_task(s: BuildSettings, documents: int, files: int, directory: Path) -> Task:
    """One task."""
    clusters = min(MOST_CLUSTERS, PACK_CLUSTERS * -(-documents // s.pack_documents))
    return Task("centroids", "all", str(directory), {"files": files, "clusters": clusters})


def contamination_of(s: BuildSettings) -> Contamination | None:
    """The n-grams of the evaluation files. Raises SpliceError for a file that cannot be used."""
    if not s.decontaminate:
        return None
    from splice.contamination import Contamination

    return Contamination.of_files(s.decontaminate, s.ngram_words)


def needed_provenance(s: BuildSettings) -> str | None:
    """What the retriever goes by, that a document may lack: "repo", "path" or "domain"."""
    if s.retriever == "repo":
        return "path"
    if s.retriever == "domain":
        return {"repo": "repo", "extension": "path"}.get(s.domain_field, "domain")
    return None


def check_retriever(s: BuildSettings, units: list[Unit]) -> None:
    """Raise SpliceError, before any work, for a source none of whose documents can have what the retriever goes by."""
    need = needed_provenance(s)
    rows = {"repo": s.repo_field, "path": s.path_field, "domain": s.row_domain}
    for unit in units:
        has = need is None or (need != "domain" if unit.kind == "tree" else rows[need] is not None)
        if not has:
            what = (
                "files, and files have no fields"
                if unit.kind == "tree"
                else f"rows, of which no field is named as the {need}"
            )
            raise SpliceError(f"source {unit.source}: its documents are {what}; {_remedy(s, need)}")


def check_provenance(s: BuildSettings, read: list[Receipt]) -> list[str]:
    """A sentence for each source some of whose documents lack what the retriever goes by.

    Raises SpliceError for a source where more than half do.
    """
    need = needed_provenance(s)
    kept: Counter[str] = Counter()
    without: Counter[str] = Counter()
    for receipt in read:
        kept[receipt["source"]] += receipt["kept"]
        without[receipt["source"]] += receipt["without"][need] if need else 0
    lacking = {
        source: f"source {source}: {without[source]:,} of its {total:,} documents have no {_named(s, need)}"
        for source, total in kept.items()
        if without[source]
    }
    for source, said in lacking.items():
        if 2 * without[source] > kept[source]:
            raise SpliceError(f"{said}; {_remedy(s, need)}")
    return list(lacking.values())


def _named(s: BuildSettings, need: str | None) -> str:
    return f'field "{s.row_domain}"' if need == "domain" else {"repo": "repository"}.get(need or "", "path")


def _remedy(s: BuildSettings, need: str | None) -> str:
    option = {"repo": "--repo-field", "path": "--path-field"}.get(need or "", "--domain-field")
    return f"--retriever {s.retriever} goes by it: name another field with {option}, or choose another retriever"


def tokenise_and_link(
    run: Run, ingested: Ingested, encoder: Located | None, directories: dict[str, Path]
) -> tuple[Tokens, Linked | None]:
    """Tokenise every pack and find all its documents' neighbours: neither needs the other.

    Gives the tokens and the graph, which is None where the retriever has none.
    """
    s = run.settings
    directory = directories["tokens"]
    stages = [tokenizer_stage(s, ingested, directory), tokenise_stage(s, ingested, directory)]
    if s.has_link:
        *first, search = link_stages(s, encoder, ingested.directory, ingested.parts, ingested.documents, directories)
        # Between the two, so that the workers are busy until there is a tokenizer.
        stages[1:1] = first
        stages.append(search)
    receipts = run.together(stages)
    (tokenizer,) = receipts["tokenizer"]
    bos_id, eos_id = (_separator(which, s, tokenizer) for which in ("bos", "eos"))
    found = linked(encoder, ingested.documents, receipts.get("embed", [])) if s.has_link else None
    return Tokens(directory, tokenizer, receipts["tokenise"], bos_id, eos_id), found


def tokenizer_stage(s: BuildSettings, ingested: Ingested, directory: Path) -> Stage:
    """One task."""
    spec, name = s.tokenizer, None
    if spec is not None and is_remote(directory):  # a worker has no file of this machine
        given = load_tokenizer(spec, fast=False)
        given.save(directory / "given")
        spec, name = str(directory / "given"), given.name
    args = {"ingest": str(ingested.directory), "tokenizer": spec, "name": name, "vocab_size": s.vocab_size}
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


def plan(
    run: Run, ingested: Ingested, tokens: Tokens, graph: Linked | None, directories: dict[str, Path]
) -> list[Receipt]:
    """Walk every pack's graph."""
    s = run.settings
    walk = {name: getattr(s, name) for name in WALK_SETTINGS}
    shared = {
        "ingest": str(ingested.directory),
        "link": None if graph is None else str(directories["link"]),
        "tokens": str(tokens.directory),
        "before": int(tokens.bos_id is not None),
        "after": int(tokens.eos_id is not None),
        "retriever": s.retriever,
        "domain": s.domain_field if s.row_domain is None else "field",
        "walk": walk,
    }
    tasks = [
        Task(
            "plan",
            f"{p:05d}",
            str(directories["walk"]),
            {**shared, "pack": p, "parts": n, "starts": graph and graph.starts[p]},
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
        "seed": s.seed,
        "length": s.length,
        "bos_id": tokens.bos_id,
        "eos_id": tokens.eos_id,
        "pad_id": tokens.tokenizer["pad_id"],
        "retriever": s.retriever,
        "narrow": tokens.tokenizer["vocab_size"] <= 2**16,
    }
    # In a file: each shard is of all packs, whose list is too long to travel in a descriptor.
    packs = [[n, receipt["examples"]] for n, receipt in zip(ingested.parts, plans, strict=True)]
    write_json(packs_path(directories["walk"]), packs)
    laid = len(packs) > PACKS_AT_HAND  # else a process opens each once
    edges = [examples * i // count for i in range(count + 1)]  # shards of equal size: none is left nearly empty
    tasks = [
        Task(
            "write",
            f"{i:05d}",
            str(output / ".write"),
            {**shared, "laid": laid, "start": a, "stop": b, "file": f"train-{i:05d}-of-{count:05d}.parquet"},
        )
        for i, (a, b) in enumerate(pairwise(edges))
    ]
    # A shard that was removed by hand is written again.
    run.forget(tasks, output / "data", lambda task: [task.args["file"]])
    if laid and None in run.receipts(tasks):
        _lay(run, shared, packs, directories["walk"])
    written = run.stage("write", tasks, [b - a for a, b in pairwise(edges)])
    if laid:
        remove(directories["walk"] / "laid")
    return written


def _lay(run: Run, shared: dict[str, Any], packs: list[list[int]], walk: Path) -> None:
    """Lay the examples out, pack by pack, for shards that would open too many packs. packs: [parts, examples] of each."""
    tasks, first = [], 0
    for number, (parts, examples) in enumerate(packs):
        args = {**shared, "pack": number, "parts": parts, "first": first, "examples": examples}
        tasks.append(Task("lay", f"{number:05d}", str(walk), args))
        first += examples
    # What was laid out for shards that are written is gone.
    run.forget(tasks, walk / "laid", lambda task: [task.name, starts_path(Path(task.name)).name])
    run.stage("lay", tasks, [examples for _, examples in packs])


def source_settings(settings: BuildSettings) -> SourceSettings:
    """What of the settings the sources and filters need."""
    values = {name: getattr(settings, name) for name in SOURCE_SETTINGS}
    return SourceSettings(glob=tuple(settings.glob), domain_field=settings.row_domain, **values)


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
