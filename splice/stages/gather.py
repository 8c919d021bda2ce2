"""gather: one part of a pack -> its documents with their text, out of the files they were read into, in one Arrow batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import replacing
from ..packs import open_table, part_path


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: pack, part, start, stop (rows of assign/documents.arrow), sources (of each read file).

    Writes packs/PPPPP-NNNN.arrow: id, source, repo, path, domain, text.
    """
    import pyarrow as pa

    batch = _gather(directory, args["start"], args["stop"], args["sources"]).to_batches()[0]
    with (
        replacing(part_path(directory, args["pack"], args["part"])) as temporary,
        pa.ipc.new_file(str(temporary), batch.schema) as out,
    ):
        out.write_batch(batch)
    return {"documents": batch.num_rows}


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
