"""index: one pack -> the retriever's index of it, a directory of mapped arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import replacing
from ..packs import open_pack
from ..shared import shared

if TYPE_CHECKING:
    from ..bm25 import Bm25Index


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest (directory), pack, parts, bm25 (settings), keep, threads (at least, whatever the task has).

    Writes index/PPPPP/.

    keep: hold the index ready for the searches that follow in this process, which a lone pack has memory for.
    """
    from ..bm25 import Bm25Index, Bm25Settings

    pack = open_pack(args["ingest"], args["pack"], args["parts"])
    index = Bm25Index.build(pack.texts, Bm25Settings(**args["bm25"]), max(threads, args["threads"]))
    with replacing(index_path(directory, args["pack"])) as temporary:
        temporary.mkdir()
        index.save(temporary)
    if args["keep"]:
        index.prepare()
        _kept[str(directory), args["pack"]] = index
    return {"documents": pack.n_documents}


def index_path(directory: Path, pack: int) -> Path:
    """Where the index of a pack lies."""
    return directory / "index" / f"{pack:05d}"


_kept: dict[tuple[str, int], Bm25Index] = {}


@shared(maxsize=2)
def saved_index(directory: str, pack: int) -> Bm25Index:
    """The index of a pack, mapped once a process; its derived parts are shared by all threads."""
    from ..bm25 import Bm25Index

    return _kept.get((directory, pack)) or Bm25Index.load(index_path(Path(directory), pack))
