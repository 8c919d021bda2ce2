"""Files that appear whole or not at all: temporary name, rename, then a marker.

Every task writes through here, so that a task killed at any moment, run twice or run at the same time on two hosts
leaves either nothing or the same bytes. A marker is the task's receipt as JSON; it is written last.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import storage
from .errors import SpliceError
from .storage import TEMPORARY, is_remote

LOCK = ".splice.lock"  # in every output and work directory; a tree that holds one is read without it


@contextmanager
def replacing(path: Path, sync: bool = False, reread: bool = True) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it is renamed onto `path`, on error removed.

    The body may make a file or a directory there. The name is unique to the attempt, so attempts never meet. What goes to a
    store is made on this machine and sent.
    sync: on disk before the rename, so that a power cut cannot leave the name without the bytes. The dataset's own
    files are; work files can be made again, and a torn one is an error that names it.
    reread: whether tasks read it whole later, so that what is sent to a store stays in this machine's cache.
    """
    if is_remote(path):
        with storage.scratch(path.name) as made:
            yield made
            storage.send(made, path, keep=reread and not sync)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        if sync:
            flush(temporary)
        try:
            os.replace(temporary, path)
        except OSError:
            if not (temporary.is_dir() and path.is_dir()):
                raise
            shutil.rmtree(temporary)  # another attempt was first: what it made is whole, and the same
    except BaseException:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, sync: bool = False) -> None:
    """Write `value` as readable JSON, atomically, keys in the order given."""
    with replacing(path, sync) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any | None:
    """The JSON in `path`, or None where it is absent or torn (a torn marker means: not done)."""
    return _parsed(storage.read_all([path])[0])


def read_jsons(paths: Sequence[Path]) -> list[Any | None]:
    """`read_json` of several files of one directory, which a store is asked for together."""
    if not paths or not is_remote(paths[0]):
        return [read_json(path) for path in paths]
    there = storage.names(paths[0].parent)  # of a thousand markers most may not be there yet
    found = [path for path in paths if path.name in there]
    read = dict(zip(found, storage.read_all(found), strict=True))
    return [_parsed(read.get(path)) for path in paths]


def _parsed(data: bytes | None) -> Any | None:
    try:
        return None if data is None else json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None


def check_writable(directory: Path, flag: str) -> None:
    """Raise SpliceError where `directory`, which `flag` names, is not and cannot become one that can be written to."""
    if is_remote(directory):
        storage.check_reachable(directory, flag)
        return
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise SpliceError(f"{there}: not a directory that can be written to; give another {flag}")


def sweep(directory: Path) -> int:
    """Remove what killed attempts left below `directory`; the number of leftovers removed."""
    if is_remote(directory) and directory.protocol in storage.WHOLE_AT_ONCE:
        return 0  # nothing is ever there in part
    leftovers = [p for p in directory.rglob(f"{TEMPORARY}*") if p.exists()] if directory.is_dir() else []
    for path in leftovers:
        storage.remove(path)
    return len(leftovers)


def gather(source: Path, target: Path, names: Iterable[str]) -> None:
    """Make files of one directory appear in another: by hard links, or as copies on another file system and in a store."""
    if is_remote(target):
        storage.copy_all(source, target, names)
        return
    for name in names:
        link_or_copy(storage.local(source / name), target / name)


def write_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Write many small files of a directory, name -> text, each whole or not at all."""
    if is_remote(directory):
        storage.write_all(directory, {name: text.encode() for name, text in texts.items()})
        return
    for name, text in texts.items():
        with replacing(directory / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same file as `source` by a hard link, or a copy on another file system."""
    if target.exists() and os.path.samefile(source, target):
        return  # renaming one name of a file onto another of its names does nothing, and would leave both
    with replacing(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
