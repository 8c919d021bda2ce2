"""From what the user names to units: which kind of source it is, what it is called, and all errors before any work.

A SRC is
    a directory           one document a file (tree)
    a directory of shards whose files (those that match --glob) are all .jsonl, .ndjson or .parquet, besides README,
                          LICENSE and the like: read as these files, one source
    a file                .jsonl, .ndjson, .json (lines), these with .gz or .zst, .parquet
    a quoted glob         of such files, as if the shell had expanded it: each is a source
    a saved dataset       a directory written by save_to_disk, or DIR@SPLIT (disk)
    hub:NAME...           a dataset of the Hugging Face hub (hub)
    s3://, gs://, hdfs:// a directory, a file or a glob of such in a store
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType

import xxhash

from ..errors import SpliceError
from ..storage import is_url, location
from . import disk, hub, jsonl, parquet, remote, tree
from .listing import File, Listing, describe, list_tree
from .records import SourceSettings, Unit, os_reason, printable

LINES = (".jsonl", ".ndjson")
LINES_IF_NAMED = (*LINES, ".json")  # in a directory a .json file is a document as likely as a table
COMPRESSED = ("", ".gz", ".zst", ".zstd")
SUPPORTED = "a directory, .jsonl, .ndjson, .json (lines; also .gz, .zst), .parquet, a saved dataset, hub:NAME"
# What lies beside shards and is no shard: of a dataset's repository, of Spark's output.
COMPANIONS = ("readme", "license", "licence", "dataset_info", "citation", "_success")

PATHS = {"tree": tree.paths, "jsonl": jsonl.paths, "parquet": parquet.paths, "disk": disk.paths}


def plan_units(
    specs: Sequence[str | os.PathLike[str]], settings: SourceSettings, target_bytes: int = 16 * 2**20
) -> list[Unit]:
    """The units of all sources: sources in the order given, each sorted by path, units of about target_bytes.

    Documents and their order do not depend on target_bytes. Raises SpliceError where a source does not exist, holds
    nothing to read, is of an unknown kind, is given twice, or has no text field.
    """
    specs = [os.fspath(spec) for spec in specs]
    if not specs:
        raise SpliceError(f"no source given; name {SUPPORTED}")
    expanded = [path for spec in specs for path in _expand(spec)]
    _refuse_repeats(expanded)
    units: list[Unit] = []
    taken: set[str] = set()
    for spec in expanded:
        planned = _plan_source(spec, _unique(_display_name(spec), taken), settings, target_bytes)
        if not planned:
            raise SpliceError(f"{printable(spec)}: holds no document, it is empty; leave the source out")
        units += planned
    return units


def fingerprint(units: Iterable[Unit]) -> str:
    """Changes when an input does: a file's name, repository, size, time or permission; a hub dataset's revision.

    It does not depend on where the sources lie, nor on how they are cut into units.
    """
    digest = xxhash.xxh3_128()
    last = None
    for unit in units:
        for state in _states(unit):
            line = f"{unit.kind}\0{unit.source}\0{state}\n"
            if line != last:  # the next piece of the same file
                digest.update(line.encode())
            last = line
    return digest.hexdigest()


def _states(unit: Unit) -> Iterator[str]:
    if unit.kind == "hub":
        yield from (str(item) for item in unit.items)
        return
    for name, path in PATHS[unit.kind](unit):
        if is_url(path):
            yield f"{name}\0{remote.state(path)}"
            continue
        try:
            state = os.stat(path)
            # A file that could not be read and now can is another input, though neither size nor time tell.
            yield f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0{state.st_mode & 0o444:o}"
        except OSError:
            yield f"{name}\0gone"


def _expand(spec: str) -> list[str]:
    """The spec itself, or what it matches where it is a glob. Raises SpliceError where there is no such thing."""
    if is_url(spec):
        return remote.expand(spec)
    if spec.startswith(hub.PREFIX) or os.path.lexists(spec) or disk.split_spec(spec)[1]:
        return [spec]
    if glob.has_magic(spec):
        if found := sorted(glob.glob(spec, recursive=True)):
            return found
        raise SpliceError(f"{spec}: no file matches")
    parent = os.path.dirname(os.path.abspath(spec))
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    hint = f"; of the hub: {hub.PREFIX}{spec}" if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec) else ""
    raise SpliceError(f"{printable(spec)}: does not exist ({printable(parent)} does{hint})")


def _refuse_repeats(specs: list[str]) -> None:
    seen: dict[str, str] = {}
    for spec in specs:
        key = spec if spec.startswith(hub.PREFIX) or is_url(spec) else os.path.realpath(spec)
        if key in seen:
            same = "" if seen[key] == spec else f" (as {printable(seen[key])})"
            raise SpliceError(f"{printable(spec)}: given twice{same}; name each source once")
        seen[key] = spec


def _display_name(spec: str) -> str:
    if spec.startswith(hub.PREFIX):
        return hub.display_name(hub.parse(spec)[0])
    if is_url(spec):
        return location(spec).name or spec.partition("://")[2]
    path = os.path.abspath(disk.split_spec(spec)[0])
    return printable(os.path.basename(path)) or "root"


def _unique(name: str, taken: set[str]) -> str:
    candidate, n = name, 1
    while candidate in taken:
        n += 1
        candidate = f"{name}-{n}"
    taken.add(candidate)
    return candidate


def _plan_source(spec: str, source: str, settings: SourceSettings, target_bytes: int) -> list[Unit]:
    if spec.startswith(hub.PREFIX):
        return hub.plan(source, spec, settings)
    if is_url(spec):
        if remote.is_directory(spec):
            return _plan_listing(spec, spec, source, remote.list_store(spec, settings.glob), settings, target_bytes)
        _require_known_kind(spec)
        return _plan_files(source, [(spec, posixpath.basename(spec))], settings, target_bytes)
    if disk.is_saved(disk.split_spec(spec)[0]):
        return disk.plan(source, spec, _display_name(spec), settings, target_bytes)
    if os.path.isdir(spec):
        return _plan_directory(spec, source, settings, target_bytes)
    if not stat.S_ISREG(_mode(spec)):
        raise SpliceError(f"{printable(spec)}: not a regular file; supported: {SUPPORTED}")
    _require_known_kind(spec)
    name = os.path.basename(spec)
    return _plan_files(source, [(os.path.abspath(spec), name)], settings, target_bytes)


def _plan_directory(spec: str, source: str, settings: SourceSettings, target_bytes: int) -> list[Unit]:
    root = os.path.abspath(spec)
    try:
        listing = list_tree(root, settings.glob)
    except OSError as error:
        raise SpliceError(f"{printable(spec)}: cannot be listed: {os_reason(error)}") from error
    return _plan_listing(spec, root, source, listing, settings, target_bytes)


def _plan_listing(
    spec: str, root: str, source: str, listing: Listing, settings: SourceSettings, target_bytes: int
) -> list[Unit]:
    if not listing.files:
        wanted = f"no file matches --glob {' '.join(settings.glob)}" if settings.glob else "no file to read"
        raise SpliceError(f"{printable(spec)}: {wanted} (found: {describe(listing.skipped)})")
    if shards := _shards(listing):
        named = [(os.path.join(root, file.path), file.path) for file in shards]
        return _plan_files(source, named, settings, target_bytes)
    return tree.plan(source, root, listing.files, settings, target_bytes)


def _require_known_kind(spec: str) -> None:
    if _kind(spec, LINES_IF_NAMED) is None:
        raise SpliceError(f"{printable(spec)}: unknown kind of file; supported: {SUPPORTED}")


def _shards(listing: Listing) -> list[File]:
    """The data shards where the files are nothing else (besides their companions); else none."""
    shards: list[File] = []
    for file in listing.files:
        if _kind(file.path, LINES):
            shards.append(file)
        elif not os.path.basename(file.path).lower().startswith(COMPANIONS):
            return []
    return shards


def _plan_files(source: str, files: list[tuple[str, str]], settings: SourceSettings, target_bytes: int) -> list[Unit]:
    """Units of (path, name) files of either kind: pieces of large files, several small files together."""
    units: list[Unit] = []
    kind, items, size = "", [], 0
    for i, (path, name) in enumerate(files):
        file_kind = _kind(path, LINES_IF_NAMED) or ""
        reader = jsonl if file_kind == "jsonl" else parquet
        if i == 0:
            _probe(reader, path, name, settings)
        for item, bytes_ in reader.plan_file(path, name, settings, target_bytes):
            if items and (file_kind != kind or size + bytes_ > target_bytes):
                units.append(Unit(source, kind, tuple(items), size))
                items, size = [], 0
            kind = file_kind
            items.append(item)
            size += bytes_
    if items:
        units.append(Unit(source, kind, tuple(items), size))
    return units


def _probe(reader: ModuleType, path: str, name: str, settings: SourceSettings) -> None:
    """Raises SpliceError where the rows have no text; of a store's Parquet its reader tells."""
    if not is_url(path):
        reader.probe(path, name, settings)
    elif reader is jsonl:
        with remote.head(path) as copy:
            reader.probe(copy, name, settings)


def _kind(path: str, lines: tuple[str, ...]) -> str | None:
    lower = path.lower()
    if lower.endswith((".parquet", ".pq")):
        return "parquet"
    endings = tuple(ending + packed for ending in lines for packed in COMPRESSED)
    return "jsonl" if lower.endswith(endings) else None


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        raise SpliceError(f"{printable(path)}: cannot be read: {os_reason(error)}") from error
