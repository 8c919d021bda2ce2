"""index: one pack -> the retriever's index of it (BM25, dense or both), a directory of mapped arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import replacing
from ..packs import open_pack
from ..shared import shared
from ..storage import location
from .embed import read_embeddings

if TYPE_CHECKING:
    from ..bm25 import Bm25Index
    from ..dense import DenseIndex
    from ..hybrid import HybridIndex

    Index = Bm25Index | DenseIndex | HybridIndex


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest (directory), pack, parts, retriever, bm25, hybrid (settings), embed (directory), blocks (where those of its
    embeddings start), keep, threads (at least, whatever the task has).

    Writes index/PPPPP/.

    keep: hold the index ready for the searches that follow in this process, which a lone pack has memory for.
    """
    index = _build(args, max(threads, args["threads"]))
    with replacing(index_path(directory, args["pack"])) as temporary:
        temporary.mkdir()
        index.save(temporary)
    if args["keep"]:
        index.prepare()
        _kept.clear()  # a mixture builds several datasets in one process
        _kept[str(directory), args["pack"]] = index
    return {"documents": index.n_documents}


def _build(args: dict[str, Any], threads: int) -> Index:
    bm25, dense = None, None
    if args["retriever"] != "dense":
        from ..bm25 import Bm25Index, Bm25Settings

        pack = open_pack(args["ingest"], args["pack"], args["parts"])
        bm25 = Bm25Index.build(pack.texts, Bm25Settings(**args["bm25"]), threads)
    if args["retriever"] != "bm25":
        from ..dense import DenseIndex

        dense = DenseIndex.build(read_embeddings(location(args["embed"]), args["pack"], args["blocks"]))
    if bm25 is not None and dense is not None:
        from ..hybrid import HybridIndex, HybridSettings

        return HybridIndex(bm25, dense, HybridSettings(**args["hybrid"]))
    return bm25 or dense


def index_path(directory: Path, pack: int) -> Path:
    """Where the index of a pack lies."""
    return directory / "index" / f"{pack:05d}"


_kept: dict[tuple[str, int], Index] = {}


@shared(maxsize=2)
def saved_index(directory: str, pack: int, retriever: str) -> Index:
    """The index of a pack, mapped once a process; its derived parts are shared by all threads."""
    kept = _kept.get((directory, pack))
    return kept if kept is not None else _load(index_path(location(directory), pack), retriever)


def _load(path: Path, retriever: str) -> Index:
    if retriever == "bm25":
        from ..bm25 import Bm25Index

        return Bm25Index.load(path)
    if retriever == "dense":
        from ..dense import DenseIndex

        return DenseIndex.load(path)
    from ..hybrid import HybridIndex

    return HybridIndex.load(path)
