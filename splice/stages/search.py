"""search: a block of a pack's documents -> their top-m neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..storage import local
from .index import saved_index


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: pack, retriever, start, stop, neighbours (m). Writes graph/PPPPP-SSSSSSSS.parquet: neighbours [m], scores [m]."""
    index = saved_index(str(directory), args["pack"], args["retriever"])
    queries = np.arange(args["start"], args["stop"])
    documents, scores = index.neighbours(queries, args["neighbours"], threads)
    _write(graph_path(directory, args["pack"], args["start"]), documents, scores.astype(np.float32))
    return {"documents": len(queries)}


def graph_path(directory: Path, pack: int, start: int) -> Path:
    """Where the neighbours of the block that starts at document `start` lie."""
    return directory / "graph" / f"{pack:05d}-{start:08d}.parquet"


def read_graph(directory: Path, pack: int, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The whole graph of a pack: neighbours int32 [N, m], scores float32 [N, m], writable."""
    import pyarrow.parquet as pq

    blocks = [pq.read_table(local(graph_path(directory, pack, start))) for start in starts]
    return _matrix(blocks, "neighbours"), _matrix(blocks, "scores")


def _matrix(blocks: list[Any], column: str) -> np.ndarray:
    chunks = [chunk for block in blocks for chunk in block.column(column).chunks]
    width = chunks[0].type.list_size
    return np.concatenate([chunk.flatten().to_numpy().reshape(-1, width) for chunk in chunks])


def _write(path: Path, documents: np.ndarray, scores: np.ndarray) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    m = documents.shape[1]
    table = pa.table(
        {
            "neighbours": pa.FixedSizeListArray.from_arrays(pa.array(documents.ravel(), pa.int32()), m),
            "scores": pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel(), pa.float32()), m),
        }
    )
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=1, use_dictionary=False)
