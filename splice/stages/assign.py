"""assign: all that was read -> exact duplicates found, each document's pack, and the sample for the tokenizer.

One task over the whole corpus, so it holds some 40 bytes a document and no text.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..files import replacing
from ..packs import assign, open_table, parts_of
from ..storage import local

PART_BYTES = 32 * 2**20
SAMPLE_BYTES = 6 * 2**20  # on the C of Linux 8 MB saves another 0.25% of the tokens, and costs another second


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: units ([source, documents kept] of each read file), dedup, near_threshold, pack_documents, max_repo_bytes.

    Writes assign/documents.arrow (shard, row, sorted by pack, then in input order), assign/refused.parquet (id, source,
    reason, duplicate_of of every refused document) and assign/sample.arrow (text). The receipt holds each pack's parts
    as [start, stop, bytes] of the rows of documents.arrow. Raises SpliceError for a source without a document.
    """
    import pyarrow as pa

    sources = [source for source, _ in args["units"]]
    tables = [open_table(directory / "read" / f"{i:05d}.arrow") for i in range(len(sources))]
    counts = np.array([table.num_rows for table in tables], np.int64)
    _check_sources(sources, counts, directory)

    shard = np.repeat(np.arange(len(tables)), counts)
    row = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    hashes = _hashes(tables)
    first = np.arange(len(row)) if args["dedup"] == "none" else _first_with_same_hash(hashes)
    exact = first != np.arange(len(row))
    if args["dedup"] == "near":
        from ..near import first_of_cluster

        similar = first_of_cluster(_signatures(directory, len(sources)), ~exact, args["near_threshold"])
        first = np.where(exact, similar[first], similar)  # of a copy, the document its original gave way to
    kept = np.flatnonzero(first == np.arange(len(row)))
    size = _sizes(tables)
    pack = assign(_repositories(tables, sources)[kept], size[kept], args["pack_documents"], args["max_repo_bytes"])
    order = np.argsort(pack, kind="stable")
    chosen = kept[order]
    _write(
        directory / "assign" / "documents.arrow",
        pa.table({"shard": pa.array(shard[chosen], pa.int32()), "row": pa.array(row[chosen], pa.int32())}),
    )
    _write_refused(directory, tables, sources, shard, row, first, exact)
    _write_sample(directory, tables, shard, row, kept, hashes, size)
    return {
        "documents": len(kept),
        "bytes": int(size[kept].sum()),
        "duplicates": len(row) - len(kept),
        "packs": _packs(pack[order], size[chosen]),
        "hash": _content_hash(hashes),
    }


def _signatures(directory: Path, files: int) -> list[np.ndarray]:
    return [np.load(local(directory / "read" / f"{i:05d}.minhash.npy"), mmap_mode="r") for i in range(files)]


def _packs(pack: np.ndarray, size: np.ndarray) -> list[list[tuple[int, int, int]]]:
    """Per pack its parts (start, stop, bytes), rows of documents.arrow."""
    edges = np.searchsorted(pack, np.arange(int(pack.max(initial=-1)) + 2))
    return [
        [
            (a + int(start), b + int(start), int(size[a + start : b + start].sum()))
            for a, b in parts_of(size[start:stop], PART_BYTES)
        ]
        for start, stop in pairwise(edges)
    ]


def _check_sources(sources: list[str], counts: np.ndarray, directory: Path) -> None:
    totals = dict.fromkeys(sources, 0)
    for source, count in zip(sources, counts.tolist(), strict=True):
        totals[source] += count
    empty = [source for source, total in totals.items() if total == 0]
    if empty:
        reasons = directory / "read"
        raise SpliceError(
            f"source {', '.join(empty)}: no document is left after reading and filtering; look at *.quarantine.jsonl in "
            f"{reasons}, at --text-field, --min-chars and --max-chars, or leave the source out"
        )


def _hashes(tables: list[Any]) -> np.ndarray:
    """Content hashes as uint64 [N, 2]."""
    chunks = [chunk for table in tables for chunk in table.column("hash").chunks]
    parts = [
        np.frombuffer(chunk.buffers()[1], np.uint64).reshape(-1, 2)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in chunks
    ]
    return np.concatenate(parts) if parts else np.zeros((0, 2), np.uint64)


def _first_with_same_hash(hashes: np.ndarray) -> np.ndarray:
    """int64 [N]: number of the first document with the same content (itself where it is the first)."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # stable: equal hashes stay in input order
    ranked = hashes[order]
    new = np.ones(len(order), bool)
    new[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    first = np.empty(len(order), np.int64)
    first[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1]
    return first


def _sizes(tables: list[Any]) -> np.ndarray:
    import pyarrow.compute as pc

    parts = [pc.binary_length(table.column("text")).to_numpy() for table in tables]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def _repositories(tables: list[Any], sources: list[str]) -> np.ndarray:
    """int64 [N]: one number for each (source, repo), -1 where a document has no repository."""
    numbers: dict[tuple[str, str], int] = {}
    parts = []
    for table, source in zip(tables, sources, strict=True):
        encoded = table.column("repo").combine_chunks().dictionary_encode()
        values = [numbers.setdefault((source, repo), len(numbers)) for repo in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(values)).to_numpy()
        parts.append(np.array([*values, -1], np.int64)[codes])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _write_refused(
    directory: Path,
    tables: list[Any],
    sources: list[str],
    shard: np.ndarray,
    row: np.ndarray,
    first: np.ndarray,
    exact: np.ndarray,
) -> None:
    """The fate of every document that is in no pack: its filter's reason, or the document or evaluation file it repeats."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in ("id", "source", "reason", "duplicate_of")])
    ids: list[str] = []
    owner: list[str] = []
    reasons: list[str] = []
    same: list[str | None] = []
    for number, source in enumerate(sources):
        path = directory / "read" / f"{number:05d}.refused.arrow"
        if path.exists():
            table = open_table(path)
            ids += table.column("id").to_pylist()
            reasons += table.column("reason").to_pylist()
            owner += [source] * table.num_rows
            same += table.column("by").to_pylist()
    for copy in np.flatnonzero(first != np.arange(len(first))).tolist():
        original = int(first[copy])
        ids.append(_id(tables, shard[copy], row[copy]))
        owner.append(sources[shard[copy]])
        reasons.append("duplicate" if exact[copy] else "near_duplicate")
        same.append(f"{sources[shard[original]]}:{_id(tables, shard[original], row[original])}")
    with replacing(directory / "assign" / "refused.parquet") as temporary:
        pq.write_table(pa.table([ids, owner, reasons, same], schema=schema), temporary)


def _id(tables: list[Any], shard: int, row: int) -> str:
    return tables[shard].column("id")[int(row)].as_py()


def _write_sample(
    directory: Path,
    tables: list[Any],
    shard: np.ndarray,
    row: np.ndarray,
    kept: np.ndarray,
    hashes: np.ndarray,
    size: np.ndarray,
) -> None:
    """The documents of the smallest content hashes, SAMPLE_BYTES of them: a uniform sample that no order can change."""
    import pyarrow as pa

    by_hash = kept[np.argsort(hashes[kept, 0], kind="stable")]
    chosen = by_hash[: int(np.searchsorted(np.cumsum(size[by_hash]), SAMPLE_BYTES)) + 1]
    texts = [tables[shard[d]].column("text")[int(row[d])].as_py() for d in chosen]
    _write(directory / "assign" / "sample.arrow", pa.table({"text": pa.array(texts, pa.large_binary())}))


def _content_hash(hashes: np.ndarray) -> str:
    """One hash of the whole input's content, in input order."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(hashes).data)


def _write(path: Path, table: Any) -> None:
    import pyarrow as pa

    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as out:
        out.write_table(table.combine_chunks())
