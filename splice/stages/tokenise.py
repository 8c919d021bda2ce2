"""tokenise: one part of a pack -> its documents with their text and LM tokens, in one Arrow batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from splice.files import replacing
from splice.packs import binary_arrays, open_table, part_path
from splice.stages.tokenizer import saved_tokenizer


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: pack, part, start, stop (rows of assign/documents.arrow), sources (of each read file), backend.

    Writes packs/PPPPP-NNNN.arrow: id, source, repo, path, text, tokens (list of uint16 where the vocabulary allows), and
    documents/PPPPP-NNNN.parquet: id, source, repo, path, bytes, tokens (a count).
    """
    import pyarrow as pa

    documents = _gather(directory, args["start"], args["stop"], args["sources"])
    tokenizer = saved_tokenizer(str(directory), args["backend"])
    data, offsets = binary_arrays(documents.column("text").chunk(0))
    ids, token_offsets = tokenizer.encode_arrow(data, offsets, threads)
    narrow = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    tokens = pa.LargeListArray.from_arrays(pa.array(token_offsets), pa.array(ids.astype(narrow)))
    batch = documents.append_column("tokens", tokens).to_batches()[0]
    with (
        replacing(part_path(directory, args["pack"], args["part"])) as temporary,
        pa.ipc.new_file(str(temporary), batch.schema) as out,
    ):
        out.write_batch(batch)
    counts = np.diff(token_offsets)
    _write_documents(documents_path(directory, args["pack"], args["part"]), batch, np.diff(offsets), counts)
    return {
        "documents": batch.num_rows,
        "bytes": int(offsets[-1] - offsets[0]),
        "tokens": len(ids),
        "by_source": _by_source(batch.column("source").to_pylist(), counts),
    }


def documents_path(directory: Path, pack: int, part: int) -> Path:
    """Where the provenance of a part's documents lies: what a dataset keeps of them besides their tokens."""
    return directory / "documents" / f"{pack:05d}-{part:04d}.parquet"


def _write_documents(path: Path, batch: Any, size_bytes: np.ndarray, tokens: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            **{name: batch.column(name) for name in ("id", "source", "repo", "path")},
            "bytes": pa.array(size_bytes, pa.int64()),
            "tokens": pa.array(tokens, pa.int64()),
        }
    )
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=1)


def _by_source(sources: list[str], tokens: np.ndarray) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for source, count in zip(sources, tokens.tolist(), strict=True):
        total = totals.setdefault(source, {"documents": 0, "tokens": 0})
        total["documents"] += 1
        total["tokens"] += count
    return totals


def _gather(directory: Path, start: int, stop: int, sources: list[str]) -> Any:
    """Rows start .. stop of the assignment as one table: runs of rows of the read files, joined with one copy."""
    import pyarrow as pa

    where = open_table(directory / "assign" / "documents.arrow").slice(start, stop - start)
    shard, row = where.column("shard").to_numpy(), where.column("row").to_numpy()
    edges = np.flatnonzero((np.diff(shard) != 0) | (np.diff(row) != 1)) + 1
    runs = []
    open_shard, table = -1, None
    for a, b in zip([0, *edges.tolist()], [*edges.tolist(), len(row)], strict=True):
        if shard[a] != open_shard:
            open_shard = int(shard[a])
            table = open_table(directory / "read" / f"{open_shard:05d}.arrow").drop_columns(["hash"])
            source = pa.DictionaryArray.from_arrays(np.zeros(table.num_rows, np.int8), [sources[open_shard]])
            table = table.add_column(1, "source", source.cast(pa.string()))
        runs.append(table.slice(int(row[a]), b - a))
    return pa.concat_tables(runs).combine_chunks()
