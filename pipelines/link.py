"""The link stages: embeddings where the retriever goes by them, its index, and the search for all neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splice.errors import SpliceError
from splice.files import read_json, read_jsons, write_json
from splice.settings import BuildSettings
from splice.storage import is_remote, names, send
from splice.task import Receipt, Task

from .run import Stage

if TYPE_CHECKING:
    from splice.encoder import Located

SEARCH_BLOCK = 1024  # documents of one search task where there is one pack
MOST_BLOCKS = 64  # as much larger it gets with more packs
EMBED_BLOCK = 256  # documents of one embedding task: some minutes of a CPU with a large encoder, a moment of a GPU
EMBED_WEIGHT = 100  # embedding a document on a CPU takes as long as searching for so many, with a small encoder


@dataclass(frozen=True)
class Linked:
    """What link leaves. starts: of each pack, where the blocks of its graph start; encoder: what the manifest says of it."""

    starts: list[list[int]]
    encoder: dict[str, Any] | None


def encoder_of(s: BuildSettings) -> Located | None:
    """The encoder of a retriever that goes by one. Raises SpliceError where it, or what it needs, is missing."""
    if not s.has_encoder:
        return None
    from splice.encoder import locate, require

    require()
    return locate(s.encoder)


def check_embeddings(encoder: Located | None, directory: Path | None) -> None:
    """Raise SpliceError where the embeddings that are there already have another dimension than the encoder's."""
    if encoder is None or encoder.dimension is None or directory is None:
        return
    done = sorted(name for name in names(directory / "done") if name.startswith("embed-"))
    for receipt in read_jsons([directory / "done" / name for name in done]):
        stored = (receipt or {}).get("dimension")
        if stored != encoder.dimension:
            raise SpliceError(
                f"{directory}: holds embeddings of dimension {stored}, and encoder {encoder.name} gives {encoder.dimension}; "
                "remove the directory to embed again, or give the encoder they were made with"
            )


def link_stages(
    s: BuildSettings,
    encoder: Located | None,
    ingest: Path,
    parts: Sequence[int],
    documents: Sequence[int],
    directories: dict[str, Path],
) -> list[Stage]:
    """Embed (where there is an encoder), index and search. parts, documents: of each pack."""
    link = directories["link"]
    stages = [
        _index(s, ingest, parts, documents, directories.get("embed"), link),
        _search(s, documents, link),
    ]
    if encoder is not None:
        stages.insert(0, _embed(s, encoder, ingest, parts, documents, directories["embed"]))
    return stages


def linked(encoder: Located | None, documents: Sequence[int], embedded: list[Receipt]) -> Linked:
    """What the stages left, from the receipts of `embed`."""
    facts = None
    if encoder is not None:
        devices = sorted({receipt["device"] for receipt in embedded})
        facts = {
            "name": encoder.name,
            "revision": encoder.revision,
            "fingerprint": encoder.identity,
            "dimension": embedded[0]["dimension"] if embedded else None,
            "tokens": embedded[0]["max_tokens"] if embedded else None,
            "parts": embedded[0]["parts"] if embedded else None,
            "devices": devices,
        }
    block = search_block(len(documents))
    return Linked([_starts(n, block) for n in documents], facts)


def _embed(
    s: BuildSettings,
    encoder: Located,
    ingest: Path,
    parts: Sequence[int],
    documents: Sequence[int],
    directory: Path,
) -> Stage:
    """A task for every block of every pack."""
    base = {
        "ingest": str(ingest),
        "encoder": _place_of(encoder, directory),
        "revision": encoder.revision,
        "tokens": s.encoder_tokens,
    }
    blocks = _blocks(documents, EMBED_BLOCK)
    tasks = [
        Task(
            "embed",
            f"{p:05d}-{a:08d}",
            str(directory),
            {**base, "number": number, "pack": p, "parts": parts[p], "start": a, "stop": b},
        )
        for number, (p, a, b) in enumerate(blocks)
    ]
    return Stage("embed", tasks, [EMBED_WEIGHT * (b - a) for _, a, b in blocks])


def _place_of(encoder: Located, directory: Path) -> str:
    """Where workers find the encoder: on the hub, in a directory, or in the store, which has no file of this machine."""
    if encoder.revision:
        return encoder.name
    if not is_remote(directory):
        return str(encoder.directory.resolve())
    if read_json(directory / "encoder.json") is None:
        send(encoder.directory.resolve(), directory / "encoder", keep=False)
        write_json(directory / "encoder.json", {"fingerprint": encoder.identity})
    return str(directory / "encoder")


def _index(
    s: BuildSettings, ingest: Path, parts: Sequence[int], documents: Sequence[int], embed: Path | None, directory: Path
) -> Stage:
    """A task for every pack."""
    base = {
        "ingest": str(ingest),
        "retriever": s.retriever,
        "bm25": {name: getattr(s, name) for name in ("k1", "b", "query_tf", "max_df")},
        "hybrid": {name: getattr(s, name) for name in ("merge", "bm25_weight", "window")},
        "embed": embed and str(embed),
        "keep": len(parts) == 1,
        "threads": max(1, s.worker_count // (len(parts) + 1)),  # one trains the tokenizer
    }
    tasks = [
        Task(
            "index",
            f"{p:05d}",
            str(directory),
            {**base, "pack": p, "parts": n, "blocks": _starts(documents[p], EMBED_BLOCK)},
            after="embed",
        )
        for p, n in enumerate(parts)
    ]
    return Stage("index", tasks, list(documents))


def _search(s: BuildSettings, documents: Sequence[int], directory: Path) -> Stage:
    """A task for every block of every pack."""
    blocks = _blocks(documents, search_block(len(documents)))
    tasks = [
        Task(
            "search",
            f"{p:05d}-{a:08d}",
            str(directory),
            {"pack": p, "retriever": s.retriever, "start": a, "stop": b, "neighbours": s.neighbours},
            after="index",
        )
        for p, a, b in blocks
    ]
    return Stage("search", tasks, [b - a for _, a, b in blocks])


def search_block(packs: int) -> int:
    """Documents of one search task. Many packs are tasks enough, and a task opens its pack's index, maybe from afar."""
    return SEARCH_BLOCK * min(packs, MOST_BLOCKS)


def _blocks(documents: Sequence[int], size: int) -> list[tuple[int, int, int]]:
    """(pack, start, stop) of every block of every pack."""
    return [(p, a, min(a + size, n)) for p, n in enumerate(documents) for a in _starts(n, size)]


def _starts(documents: int, block: int) -> list[int]:
    return list(range(0, documents, block))
