"""write: one shard -> its examples, taken from the plans in an order drawn by seed over the whole dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..seeded import permutation
from ..shared import shared
from ..storage import local, location
from ..store.records import read_records
from ..store.shards import Example, file_sha256, write_shard
from .lay import laid_path, materialise
from .plan import packs_path


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest, tokens, walk (directories), laid (whether the examples lie in walk/laid), output, start, stop (places in the
    shuffled order), file, seed, length, bos_id, eos_id (None where not joined by it), pad_id, retriever, narrow (as laid).

    Writes OUTPUT/data/FILE; the receipt has its sha256 and what it holds, by source.
    """
    packs = _packs(args["walk"])
    first = np.cumsum([0] + [examples for _, examples in packs])
    numbers = permutation(int(first[-1]), args["seed"], "examples")[args["start"] : args["stop"]]
    pack_of = np.searchsorted(first, numbers, side="right") - 1
    if args["laid"]:
        place = location(args["walk"])
        wanted = [(laid_path(place, p), int(n - first[p])) for p, n in zip(pack_of, numbers, strict=True)]
        examples = read_records(wanted, args["narrow"])
    else:
        examples = _out_of_packs(args, packs, first, numbers, pack_of)
    path = location(args["output"]) / "data" / args["file"]
    with replacing(path, sync=True) as temporary:
        totals = write_shard(temporary, examples, args["length"], args["retriever"])
        digest = file_sha256(temporary)
        size = temporary.stat().st_size
    return {"file": args["file"], "sha256": digest, "bytes": size, **totals}


def _out_of_packs(
    args: dict[str, Any], packs: list[list[int]], first: np.ndarray, numbers: np.ndarray, pack_of: np.ndarray
) -> list[Example]:
    """The examples of these numbers, each pack opened once."""
    examples: list[Any] = [None] * len(numbers)
    for pack in np.unique(pack_of).tolist():
        places = np.flatnonzero(pack_of == pack)
        found = materialise(args, pack, packs[pack][0], numbers[places], int(first[pack]))
        for place, example in zip(places.tolist(), found, strict=True):
            examples[place] = example
    return examples


@shared(maxsize=1)
def _packs(walk: str) -> list[list[int]]:
    return json.loads(local(packs_path(location(walk))).read_bytes())
