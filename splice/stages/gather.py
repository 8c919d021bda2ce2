"""gather: one part of a pack -> its documents with their text, out of the files they were read into, in one Arrow batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_json, replacing
from ..packs import open_table, part_path
from ..shared import shared
from ..storage import TEMPORARY, location, names, read_all
from .assign import pack_path, sources_path


def run(args: dict[str, Any], directory: Path, threads: int) -> dict[str, Any]:
    """args: pack, part, start, stop (documents of the pack).

    Writes packs/PPPPP-NNNN.arrow: id, source, repo, path, domain, text; and sample/PPPPP-NNNN.arrow where documents of it are of
    the tokenizer's sample: number (their place in the sample), text.
    """
    import pyarrow as pa

    batch = _gather(directory, args["pack"], args["start"], args["stop"]).to_batches()[0]
    number, row = _sampled(directory, args["pack"], args["start"], args["stop"])
    if len(number):
        sampled = pa.record_batch({"number": number, "text": batch.column("text").take(row)})
        _write(directory / "sample" / part_path(directory, args["pack"], args["part"]).name, sampled)
    _write(part_path(directory, args["pack"], args["part"]), batch)
    return {"documents": batch.num_rows}


def read_sample(directory: Path) -> list[bytes]:
    """The documents of the tokenizer's sample, in its order."""
    import pyarrow as pa

    folder = directory / "sample"
    found: dict[int, bytes] = {}
    for data in read_all([folder / name for name in sorted(names(folder)) if not name.startswith(TEMPORARY)]):
        batch = pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)
        found.update(zip(batch.column("number").to_pylist(), batch.column("text").to_pylist(), strict=True))
    return [found[number] for number in sorted(found)]


def _gather(directory: Path, pack: int, start: int, stop: int) -> Any:
    """Documents start .. stop of a pack as one table: runs of rows of the read files, joined with one copy."""
    import pyarrow as pa

    sources = _sources(str(directory))
    where = open_table(pack_path(directory, pack)).slice(start, stop - start)
    shard, row = where.column("shard").to_numpy(), where.column("row").to_numpy()
    edges = np.flatnonzero((np.diff(shard) != 0) | (np.diff(row) != 1)) + 1
    runs = []
    open_shard, table = -1, None
    for a, b in zip([0, *edges.tolist()], [*edges.tolist(), len(row)], strict=True):
        if shard[a] != open_shard:
            open_shard = int(shard[a])
            table = open_table(directory / "read" / f"{open_shard:05d}.arrow")
            source = pa.DictionaryArray.from_arrays(np.zeros(table.num_rows, np.int8), [sources[open_shard]])
            table = table.add_column(1, "source", source.cast(pa.string()))
        runs.append(table.slice(int(row[a]), b - a))
    return pa.concat_tables(runs).combine_chunks()


@shared(maxsize=1)
def _sources(directory: str) -> list[str]:
    return read_json(sources_path(location(directory)))


def _sampled(directory: Path, pack: int, start: int, stop: int) -> tuple[Any, np.ndarray]:
    """The documents start .. stop of a pack that are of the sample: their places in it, and theirs here."""
    import pyarrow as pa

    sample = open_table(directory / "assign" / "sample.arrow")
    document = sample.column("document").to_numpy()
    number = np.flatnonzero((sample.column("pack").to_numpy() == pack) & (document >= start) & (document < stop))
    return pa.array(number, pa.int32()), document[number] - start


def _write(path: Path, batch: Any) -> None:
    import pyarrow as pa

    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as out:
        out.write_batch(batch)
