"""write: one shard -> its examples, taken from the plans in an order drawn by seed over the whole dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..packs import Pack, open_pack
from ..seeded import permutation
from ..shared import shared
from ..storage import location
from ..store.shards import Example, file_sha256, write_shard
from .plan import saved_plan


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest, tokens, walk (directories), output, packs ([parts, examples] of each pack), start, stop (places in the
    shuffled order), file, seed, length, bos_id, eos_id (None where not joined by it), pad_id, retriever.

    Writes OUTPUT/data/FILE; the receipt has its sha256 and what it holds, by source.
    """
    first = np.cumsum([0] + [examples for _, examples in args["packs"]])
    numbers = permutation(int(first[-1]), args["seed"], "examples")[args["start"] : args["stop"]]
    examples = (_example(args, int(number), first) for number in numbers)
    path = location(args["output"]) / "data" / args["file"]
    with replacing(path, sync=True) as temporary:
        totals = write_shard(temporary, examples, args["length"], args["retriever"])
        digest = file_sha256(temporary)
        size = temporary.stat().st_size
    return {"file": args["file"], "sha256": digest, "bytes": size, **totals}


def _example(args: dict[str, Any], number: int, first: np.ndarray) -> Example:
    """Materialise example `number` of the plan."""
    pack_number = int(np.searchsorted(first, number, side="right")) - 1
    pack = open_pack(args["ingest"], pack_number, args["packs"][pack_number][0], args["tokens"])
    plan = saved_plan(args["walk"], pack_number)
    a, b = plan["starts"][number - first[pack_number] :][:2]
    written = np.arange(a, b)[plan["end"][a:b] > plan["begin"][a:b]]
    ids = np.full(args["length"], args["pad_id"], np.int32)
    documents = plan["document"][written]
    spans = np.empty((len(written), 2), np.int32)
    stop = 0
    for i, row in enumerate(written):
        offset, begin, end = int(plan["offset"][row]), int(plan["begin"][row]), int(plan["end"][row])
        stop = offset + end - begin
        spans[i] = _copy(pack, int(documents[i]), begin, ids[offset:stop], args["bos_id"], args["eos_id"])
    provenance = _provenance(args["ingest"], pack_number, args["packs"][pack_number][0])
    return Example(
        number=number,
        pack=pack_number,
        input_ids=ids,
        padding=args["length"] - stop,
        doc_ids=[provenance["id"][d] for d in documents],
        sources=[provenance["source"][d] for d in documents],
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


@shared(maxsize=8)
def _provenance(ingest: str, number: int, parts: int) -> dict[str, list[str | None]]:
    pack = open_pack(ingest, number, parts)
    return {"id": pack.strings("id"), "source": pack.strings("source")}
