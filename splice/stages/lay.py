"""lay: one pack -> its examples, laid out so that a shard, which is of all packs, fetches those it needs and no pack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..materialise import materialise
from ..store.records import starts_path, write_records


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest, tokens, walk (directories), pack, parts, first, examples (number of the pack's first, and how many there
    are), length, bos_id, eos_id (None where not joined by it), pad_id, retriever, narrow (whether all tokens are below 65,536).

    Writes laid/PPPPP and laid/PPPPP.starts.
    """
    numbers = np.arange(args["first"], args["first"] + args["examples"])
    path = laid_path(directory, args["pack"])
    with replacing(path, reread=False) as temporary:
        found = materialise(args, args["pack"], args["parts"], numbers, args["first"]) if len(numbers) else iter(())
        starts = write_records(temporary, found, args["length"], args["retriever"], args["narrow"])
    with replacing(starts_path(path), reread=False) as temporary:
        starts.tofile(temporary)
    return {"bytes": int(starts[-1])}


def laid_path(walk: Path, pack: int) -> Path:
    """Where the examples of a pack lie."""
    return walk / "laid" / f"{pack:05d}"
