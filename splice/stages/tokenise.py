"""tokenise: one part of a pack -> its documents' LM tokens, and the table of what a dataset keeps of each document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..packs import binary_arrays, open_batch, part_path, tokens_path
from ..storage import location
from .tokenizer import saved_tokenizer


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: ingest (directory), pack, part, threads (for the tokenizer, whatever the task has).

    Writes tokens/PPPPP-NNNN.arrow: tokens (a list a document, uint16 where the vocabulary allows), and
    documents/PPPPP-NNNN.parquet: id, source, repo, path, bytes, tokens (a count).
    """
    import pyarrow as pa

    documents = open_batch(part_path(location(args["ingest"]), args["pack"], args["part"]))
    tokenizer = saved_tokenizer(str(directory), args["ingest"])
    data, offsets = binary_arrays(documents.column("text"))
    ids, token_offsets = tokenizer.encode_arrow(data, offsets, args["threads"])
    narrow = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    tokens = pa.LargeListArray.from_arrays(pa.array(token_offsets), pa.array(ids.astype(narrow)))
    batch = pa.record_batch({"tokens": tokens})
    with (
        replacing(tokens_path(directory, args["pack"], args["part"])) as temporary,
        pa.ipc.new_file(str(temporary), batch.schema) as out,
    ):
        out.write_batch(batch)
    counts = np.diff(token_offsets)
    _write_documents(documents_path(directory, args["pack"], args["part"]), documents, np.diff(offsets), counts)
    return {
        "documents": documents.num_rows,
        "bytes": int(offsets[-1] - offsets[0]),
        "tokens": len(ids),
        "by_source": _by_source(documents.column("source").to_pylist(), counts),
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
