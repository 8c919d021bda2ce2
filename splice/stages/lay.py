"""lay: one pack -> its examples, laid out so that a shard, which is of all packs, fetches those it needs and no pack."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..packs import Pack, open_pack
from ..store.records import starts_path, write_records
from ..store.shards import Example
from .plan import saved_plan


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


def materialise(
    args: dict[str, Any], pack_number: int, parts: int, numbers: np.ndarray, first: int
) -> Iterator[Example]:
    """Examples of one pack. numbers: int64 [n], in the whole dataset, where the pack's begin at `first`.

    args: ingest, tokens, walk (directories), length, bos_id, eos_id (None where not joined by it), pad_id.
    """
    pack = open_pack(args["ingest"], pack_number, parts, args["tokens"])
    plan = saved_plan(args["walk"], pack_number)
    begin, end = plan["starts"][numbers - first], plan["starts"][numbers - first + 1]
    rows = [np.arange(a, b)[plan["end"][a:b] > plan["begin"][a:b]] for a, b in zip(begin, end, strict=True)]
    documents = plan["document"][np.concatenate(rows)]
    ids, sources = (iter(pack.strings(name, documents)) for name in ("id", "source"))
    for number, written in zip(numbers.tolist(), rows, strict=True):
        n = len(written)
        yield _example(args, number, pack, plan, written, list(islice(ids, n)), list(islice(sources, n)))


def _example(
    args: dict[str, Any],
    number: int,
    pack: Pack,
    plan: dict[str, np.ndarray],
    written: np.ndarray,
    doc_ids: list[Any],
    sources: list[Any],
) -> Example:
    """Materialise example `number` from its rows of the plan, int64 [n]."""
    ids = np.full(args["length"], args["pad_id"], np.int32)
    documents = plan["document"][written]
    spans = np.empty((len(written), 2), np.int32)
    stop = 0
    for i, row in enumerate(written):
        offset, begin, end = int(plan["offset"][row]), int(plan["begin"][row]), int(plan["end"][row])
        stop = offset + end - begin
        spans[i] = _copy(pack, int(documents[i]), begin, ids[offset:stop], args["bos_id"], args["eos_id"])
    return Example(
        number=number,
        pack=pack.number,
        input_ids=ids,
        padding=args["length"] - stop,
        doc_ids=doc_ids,
        sources=sources,
        doc_offsets=plan["offset"][written].astype(np.int32),
        doc_spans=spans,
        parents=_places(documents, plan["parent"][written]),
        scores=plan["score"][written],
    )


def _copy(
    pack: Pack, document: int, begin: int, out: np.ndarray, bos_id: int | None, eos_id: int | None
) -> tuple[int, int]:
    """Fill `out` with the document's sequence from `begin` on; gives the range of its own tokens that were written."""
    part = int(np.searchsorted(pack.first, document, side="right")) - 1
    tokens, offsets = pack.token_arrays[part]
    start, stop = offsets[document - pack.first[part] :][:2]
    n = int(stop - start)
    before = 0 if bos_id is None else 1
    end = begin + len(out)
    a, b = min(max(begin - before, 0), n), min(max(end - before, 0), n)
    at = a + before - begin
    out[at : at + b - a] = tokens[start + a : start + b]
    if bos_id is not None and begin == 0:
        out[0] = bos_id
    if eos_id is not None and end == n + before + 1:
        out[-1] = eos_id
    return a, b


def _places(documents: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Parents as places in the example's own list; -1 for a root, or a parent that is in an earlier example."""
    place = {int(document): i for i, document in enumerate(documents)}
    return np.array([place.get(int(parent), -1) for parent in parents], np.int32)
