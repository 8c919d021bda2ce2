"""assign: the keys of all that was read -> duplicates, each document's pack, and which documents are the tokenizer's sample.

One task over the whole corpus. It sees no text, and holds some 76 bytes a document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..files import replacing, write_json
from ..packs import assign, level_cuts, open_table, parts_of
from ..storage import local, names

PART_BYTES = 32 * 2**20
SAMPLE_BYTES = 6 * 2**20  # on the C of Linux 8 MB saves another 0.25% of the tokens, and costs another second
HASH_RANGES = 16  # sorted one after the other
REFUSED_ROWS = 2**18  # of a row group


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: units ([source, documents kept] of each read file), dedup, near_threshold, pack_by, pack_documents,
    max_repo_bytes.

    Writes assign/PPPPP.arrow (shard, row of each document of a pack, in input order), assign/sources.json (the source of each
    shard), assign/refused.parquet (id, source, reason, duplicate_of of every refused document) and assign/sample.arrow (pack,
    document: the tokenizer's sample). The receipt holds each pack's parts as [start, stop, bytes] of its documents. Raises
    SpliceError for a source without a document.
    """
    sources = [source for source, _ in args["units"]]
    counts = np.array([kept for _, kept in args["units"]], np.int64)
    _check_sources(sources, counts, directory)
    keys, hashes = _read_keys(directory, counts)
    digest = _content_hash(hashes)
    copies = _copies(hashes, directory, args)
    kept = np.ones(keys.n_documents, bool)
    kept[copies.document] = False
    sample = _sample(keys, hashes, kept)
    documents = np.flatnonzero(kept)
    drawn = hashes[documents, 0] if args["pack_by"] == "hash" else None
    del hashes  # a third of what this task holds
    order, edges = _deal(args, directory, keys, sources, documents, drawn)
    packs, place = [], np.empty((len(sample), 2), np.int32)
    for number, (a, b) in enumerate(pairwise(edges)):
        mine = np.sort(documents[order[a:b]])
        _write_pack(pack_path(directory, number), keys, mine)
        found, which = _in_sorted(mine, sample)
        place[which] = np.stack([np.full(len(found), number), found], axis=1)
        size = keys.bytes[mine]
        packs.append([(int(i), int(j), int(size[i:j].sum(dtype=np.int64))) for i, j in parts_of(size, PART_BYTES)])
    write_json(sources_path(directory), sources)
    _write_sample(directory / "assign" / "sample.arrow", place)
    _write_refused(directory, keys, sources, copies)
    return {
        "documents": len(documents),
        "bytes": int(keys.bytes[kept].sum(dtype=np.int64)),
        "duplicates": len(copies.document),
        "packs": packs,
        "hash": digest,
    }


def pack_path(directory: Path, pack: int) -> Path:
    """Where it is written which documents a pack is of."""
    return directory / "assign" / f"{pack:05d}.arrow"


def sources_path(directory: Path) -> Path:
    """Where the source of each read file is named."""
    return directory / "assign" / "sources.json"


def keys_path(directory: Path, shard: int) -> Path:
    """Where the keys of a read file's documents lie."""
    return directory / "read" / f"{shard:05d}.keys.arrow"


def clusters_path(directory: Path, shard: int) -> Path:
    """Where the clusters of a read file's documents lie."""
    return directory / "read" / f"{shard:05d}.clusters.npy"


@dataclass(frozen=True)
class _Keys:
    """What is known of every document that was read, N of them in input order, besides its text and its hash."""

    directory: Path
    starts: np.ndarray  # int64 [files + 1]: number of each read file's first document
    bytes: np.ndarray  # uint32 [N], of the text

    @property
    def n_documents(self) -> int:
        return len(self.bytes)

    def places(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(shard, row): which read file each document is in, and where there."""
        shard = np.searchsorted(self.starts, documents, side="right") - 1
        return shard, documents - self.starts[shard]

    def columns(self, name: str) -> Iterator[Any]:
        """One column of each read file, one file after the other: a pyarrow.ChunkedArray."""
        for shard in range(len(self.starts) - 1):
            yield open_table(keys_path(self.directory, shard)).column(name)

    def ids(self, documents: np.ndarray) -> np.ndarray:
        """Their ids, object [n]. Files are opened in order, once each."""
        shard, row = self.places(documents)
        ids = np.empty(len(documents), object)
        order = np.argsort(shard, kind="stable")
        for mine in np.split(order, np.flatnonzero(np.diff(shard[order])) + 1) if len(order) else []:
            table = open_table(keys_path(self.directory, int(shard[mine[0]])))
            ids[mine] = table.column("id").take(row[mine]).to_pylist()
        return ids


def _read_keys(directory: Path, counts: np.ndarray) -> tuple[_Keys, np.ndarray]:
    """The keys, and the hashes of the contents, uint64 [N, 2]. counts: int64 [files], documents of each."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    hashes, size = np.empty((starts[-1], 2), np.uint64), np.empty(starts[-1], np.uint32)
    for shard, start in enumerate(starts[:-1].tolist()):
        for batch in open_table(keys_path(directory, shard)).to_batches():
            stop = start + batch.num_rows
            found = np.frombuffer(batch.column("hash").buffers()[1], np.uint64)
            hashes[start:stop] = found.reshape(-1, 2)[: batch.num_rows]
            size[start:stop] = batch.column("bytes").to_numpy()
            start = stop
    return _Keys(directory, starts, size), hashes


def _content_hash(hashes: np.ndarray) -> str:
    """One hash of the whole input's content, in input order."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(hashes.data)


@dataclass(frozen=True)
class _Copies:
    """Documents that repeat another one, in input order."""

    document: np.ndarray  # int64 [C]
    original: np.ndarray  # int64 [C], the document that is kept instead
    exact: np.ndarray  # bool [C], same bytes


def _copies(hashes: np.ndarray, directory: Path, args: dict[str, Any]) -> _Copies:
    none = np.zeros(0, np.int64)
    copy, original = (none, none) if args["dedup"] == "none" else _same_hash(hashes)
    exact = np.ones(len(copy), bool)
    if args["dedup"] == "near":
        from ..near import first_of_cluster

        kept = np.ones(len(hashes), bool)
        kept[copy] = False
        first = first_of_cluster(_Signatures(directory, len(args["units"])), kept, args["near_threshold"])
        near = np.flatnonzero(first != np.arange(len(first)))
        copy, original = np.concatenate([copy, near]), first[np.concatenate([original, near])]
        exact = np.concatenate([exact, np.zeros(len(near), bool)])
    order = np.argsort(copy)
    return _Copies(copy[order], original[order], exact[order])


def _same_hash(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The documents whose content another one before them has, int64 [C], and the first such, int64 [C].

    A range of hashes at a time, so that what is sorted is a fraction of the corpus.
    """
    copies, originals = [], []
    width = 2**64 // HASH_RANGES
    for begin in range(0, 2**64, width):
        first, last = np.uint64(begin), np.uint64(begin + width - 1)
        members = np.flatnonzero((hashes[:, 0] >= first) & (hashes[:, 0] <= last))
        order = members[
            np.lexsort((hashes[members, 1], hashes[members, 0]))
        ]  # stable: equal hashes stay in input order
        ranked = hashes[order]
        same = np.flatnonzero((ranked[1:] == ranked[:-1]).all(axis=1)) + 1  # as the one before it
        runs = np.flatnonzero(np.diff(same, prepend=-1) != 1)
        copies.append(order[same])
        originals.append(order[np.repeat(same[runs] - 1, np.diff(runs, append=len(same)))])
    return np.concatenate(copies), np.concatenate(originals)


class _Signatures:
    """The MinHash signatures of each read file, uint32 [n, P]; each is mapped when it is asked for, and closed when it is let go."""

    def __init__(self, directory: Path, files: int) -> None:
        self._directory = directory
        self._files = files

    def __len__(self) -> int:
        return self._files

    def __getitem__(self, shard: int) -> np.ndarray:
        if shard >= self._files:
            raise IndexError(shard)
        return np.load(local(self._directory / "read" / f"{shard:05d}.minhash.npy"), mmap_mode="r")


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


def _deal(
    args: dict[str, Any],
    directory: Path,
    keys: _Keys,
    sources: list[str],
    documents: np.ndarray,
    drawn: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The kept documents pack by pack: places in `documents`, int64 [kept], and where each pack begins, int64 [packs + 1].

    drawn: uint64 [kept], by which they are in random order.
    """
    by, most = args["pack_by"], args["pack_documents"]
    if by == "repository" and len(documents) > most:
        unit = _repositories(keys, sources)[documents]
        pack = assign(unit, keys.bytes[documents], most, args["max_repo_bytes"])
        edges = np.concatenate([[0], np.cumsum(np.bincount(pack))])
        return np.argsort(pack, kind="stable"), edges
    groups = [len(documents)] if len(documents) else []
    order = np.arange(len(documents))
    if by == "source":
        # Units of a source follow each other, so its documents do.
        last = np.flatnonzero([a != b for a, b in pairwise([*sources, None])]) + 1
        groups = np.diff(np.searchsorted(documents, keys.starts[last]), prepend=0).tolist()
    elif drawn is not None:
        order = np.argsort(drawn, kind="stable")
    elif by == "cluster" and len(documents) > most:
        order = np.argsort(_clusters(directory, len(sources))[documents], kind="stable")
    return order, np.array(level_cuts(groups, most))


def _clusters(directory: Path, files: int) -> np.ndarray:
    return np.concatenate([np.load(local(clusters_path(directory, shard))) for shard in range(files)])


def _repositories(keys: _Keys, sources: list[str]) -> np.ndarray:
    """int32 [N]: one number for each (source, repo), -1 where a document has no repository."""
    numbers: dict[tuple[str, str], int] = {}
    units = np.empty(keys.n_documents, np.int32)
    for source, start, column in zip(sources, keys.starts.tolist(), keys.columns("repo"), strict=False):
        encoded = column.combine_chunks().dictionary_encode()
        values = [numbers.setdefault((source, repo), len(numbers)) for repo in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(values)).to_numpy()
        units[start : start + len(codes)] = np.array([*values, -1], np.int32)[codes]
    return units


def _sample(keys: _Keys, hashes: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The documents of the smallest content hashes, SAMPLE_BYTES of them: a uniform sample that no order can change.

    int64 [S], by hash.
    """
    share = 2 * SAMPLE_BYTES / max(1, int(keys.bytes[kept].sum(dtype=np.int64)))
    while True:
        below = np.uint64(min(share * 2.0**64, 2**64 - 1))
        found = np.flatnonzero((hashes[:, 0] <= below) & kept)
        if share >= 1 or int(keys.bytes[found].sum(dtype=np.int64)) >= SAMPLE_BYTES:
            break
        share *= 2
    by_hash = found[np.argsort(hashes[found, 0], kind="stable")]
    return by_hash[: int(np.searchsorted(np.cumsum(keys.bytes[by_hash], dtype=np.int64), SAMPLE_BYTES)) + 1]


def _in_sorted(mine: np.ndarray, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of `some` are in the ascending `mine`: their places there, and their places in `some`."""
    place = np.searchsorted(mine, some)
    which = np.flatnonzero(mine[np.minimum(place, len(mine) - 1)] == some)
    return place[which], which


def _write_pack(path: Path, keys: _Keys, documents: np.ndarray) -> None:
    import pyarrow as pa

    shard, row = keys.places(documents)
    _write(path, pa.record_batch({"shard": pa.array(shard, pa.int32()), "row": pa.array(row, pa.int64())}))


def _write_sample(path: Path, place: np.ndarray) -> None:
    import pyarrow as pa

    _write(path, pa.record_batch({"pack": pa.array(place[:, 0]), "document": pa.array(place[:, 1])}))


def _write(path: Path, batch: Any) -> None:
    import pyarrow as pa

    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as out:
        out.write_batch(batch)


def _write_refused(directory: Path, keys: _Keys, sources: list[str], copies: _Copies) -> None:
    """The fate of every document that is in no pack: its filter's reason, or the document or evaluation file it repeats."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in ("id", "source", "reason", "duplicate_of")])
    waiting = [schema.empty_table()]
    with (
        replacing(directory / "assign" / "refused.parquet") as temporary,
        pq.ParquetWriter(temporary, schema) as writer,
    ):
        for table in _refused(directory, keys, sources, copies, schema):
            waiting.append(table)
            if sum(t.num_rows for t in waiting) >= REFUSED_ROWS:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _refused(directory: Path, keys: _Keys, sources: list[str], copies: _Copies, schema: Any) -> Iterator[Any]:
    """Those of each read file's filters, then the copies, some at a time."""
    import pyarrow as pa

    there = names(directory / "read")
    for shard, source in enumerate(sources):
        name = f"{shard:05d}.refused.arrow"
        if name in there:
            table = open_table(directory / "read" / name)
            columns = [table["id"], pa.array([source] * table.num_rows, pa.string()), table["reason"], table["by"]]
            yield pa.table(columns, schema=schema)
    source = np.array(sources, object)
    for start in range(0, len(copies.document), REFUSED_ROWS):
        some = slice(start, start + REFUSED_ROWS)
        copy, original = copies.document[some], copies.original[some]
        owner = source[keys.places(original)[0]]
        same = [f"{source}:{name}" for source, name in zip(owner, keys.ids(original), strict=True)]
        reasons = np.where(copies.exact[some], "duplicate", "near_duplicate")
        yield pa.table([keys.ids(copy), source[keys.places(copy)[0]], reasons, same], schema=schema)
