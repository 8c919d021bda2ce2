"""Hugging Face datasets: `hub:NAME[:CONFIG][@SPLIT]`, streamed. Loading scripts are never run.

Items of a unit: (dataset, config, split, revision, version, name, shard, shards): one shard of the stream (a file, as a
rule). The revision is fixed when the build is planned, so that every worker and every rerun reads the same. The id of a
row is NAME:ROW, and NAME:SHARD:ROW where the stream has several shards, which are read apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import xxhash

from ..errors import BuildFailed, SpliceError
from .arrow import documents
from .records import Document, Quarantined, SourceSettings, Unit
from .rows import fields, require_fields

PREFIX = "hub:"
BATCH_ROWS = 256
COMMIT_DIGITS = 40
SHARD_BYTES = 256 * 2**20  # where the hub does not say: its usual size of a file, unpacked


def parse(spec: str) -> tuple[str, str | None, str | None]:
    """(name, config, split) of hub:NAME[:CONFIG][@SPLIT]. Raises SpliceError where there is no name."""
    rest, _, split = spec.removeprefix(PREFIX).partition("@")
    name, _, config = rest.partition(":")
    if not name:
        raise SpliceError(f"{spec}: no dataset named; write hub:NAME[:CONFIG][@SPLIT], e.g. hub:allenai/c4:en@train")
    return name, config or None, split or None


def display_name(dataset: str) -> str:
    """The dataset's name, or the last name of a local path."""
    return os.path.basename(os.path.abspath(dataset)) if os.path.isdir(dataset) else dataset


def plan(source: str, spec: str, settings: SourceSettings) -> list[Unit]:
    """One unit a shard of the stream.

    Raises SpliceError where the dataset, the configuration or the split is not to be had, or has no text column.
    """
    datasets = import_datasets(spec)
    dataset, config, split = parse(spec)
    try:
        builder = datasets.load_dataset_builder(dataset, config)
        splits = [str(name) for name in builder.config.data_files or builder.info.splits or ()]
        split = choose_split(spec, splits, split)
        version = _version(builder, split)
        revision = version[1] if len(version) == 2 and len(version[1]) == COMMIT_DIGITS else None
        stream = datasets.load_dataset(dataset, config, split=split, streaming=True, revision=revision)
    except SpliceError:
        raise
    except Exception as error:  # whatever the hub, the network and the data's own files come up with
        raise SpliceError(f"{spec}: cannot be loaded: {_words(error)}") from error
    if stream.features is not None:
        require_fields(spec, list(stream.features), settings)
    shards = stream.num_shards
    described = (builder.info.splits or {}).get(split)
    size = described.num_bytes // shards if described and described.num_bytes else SHARD_BYTES
    item = (dataset, config, split, revision, ":".join(version), display_name(dataset))
    return [Unit(source, "hub", ((*item, shard, shards),), size) for shard in range(shards)]


def read(unit: Unit, settings: SourceSettings) -> Iterator[Document | Quarantined]:
    """The unit's documents. Bad data ends the shard with one Quarantined.

    Raises BuildFailed where the network does: the rows are not bad, and another attempt may read them all.
    """
    import pyarrow as pa

    for dataset, config, split, revision, _, name, shard, shards in unit.items:
        datasets = import_datasets(PREFIX + dataset)
        file = name if shards == 1 else f"{name}:{shard}"
        row = 0
        try:
            stream = datasets.load_dataset(dataset, config, split=split, streaming=True, revision=revision)
            found = list(stream.features or ())
            if found:
                stream = stream.select_columns([field for field in fields(settings) if field in found] or found[:1])
            stream = stream.shard(num_shards=shards, index=shard).with_format("arrow")
            for table in stream.iter(batch_size=BATCH_ROWS):
                yield from documents(table, found or table.column_names, file, row, settings)
                row += table.num_rows
        except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
            yield Quarantined(file, row, f"the stream breaks off here: {_words(error)}")
        except Exception as error:
            raise BuildFailed(
                f"{PREFIX}{dataset}: the stream broke off at {file}:{row}: {_words(error)}; run again"
            ) from error


def choose_split(spec: str, splits: list[str], wanted: str | None) -> str:
    """The split asked for; else train, or the only one. Raises SpliceError where that is none."""
    split = wanted or ("train" if "train" in splits or not splits else splits[0])
    if wanted is None and split != "train" and len(splits) > 1:
        raise SpliceError(f"{spec}: no split train; name one of {', '.join(splits)}: {spec}@{splits[0]}")
    if splits and split not in splits:
        raise SpliceError(f"{spec}: no split {split} (found: {', '.join(splits)})")
    return split


def import_datasets(spec: str) -> ModuleType:
    """The `datasets` library, which is an extra. Raises SpliceError where it is not installed."""
    try:
        import datasets
    except ImportError:
        raise SpliceError(f"{spec}: reading it needs Hugging Face datasets: pip install 'splice-data[hub]'") from None
    return datasets


def _version(builder: Any, split: str) -> tuple[str, ...]:
    """What `datasets` knows of the files' origin: (repository, commit) on the hub, modification times of local files."""
    files = (builder.config.data_files or {}).get(split)
    origins = getattr(files, "origin_metadata", None) or [(builder.hash,)]
    if len(set(origins)) == 1:
        return tuple(str(part) for part in origins[0])
    return (xxhash.xxh3_128_hexdigest(repr(origins).encode()),)


def _words(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:300]
