"""Sources in a store (s3://, gs://, hdfs://): listed through splice.storage, read as copies of this machine.

A file is a unit of its own, since every worker that reads a part of it would fetch the whole. What a file is called, and so
the ids of its documents, is as on a disk.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import BuildFailed, SpliceError
from ..files import LOCK
from ..storage import credentials, is_url, local, location, reaching, scratch, state_of
from .listing import File, Listing, glob_matcher
from .records import os_path, printable

HEAD_BYTES = 4 * 2**20
TOGETHER = 64  # objects asked for at the same time

# URL -> its version and its bytes, as the last listing told.
_states: dict[str, str] = {}
_bytes: dict[str, int] = {}


def expand(spec: str) -> list[str]:
    """The URL itself, or those it matches where it is a glob. Raises SpliceError where there is none, or no access."""
    import glob

    path = location(spec)
    try:
        with reaching(path):
            if not glob.has_magic(spec):
                if not path.exists():
                    raise SpliceError(f"{spec}: does not exist")
                return [spec.rstrip("/")]
            found = path.fs.glob(path.path, detail=True)  # type: ignore[attr-defined]
    except (OSError, BuildFailed) as error:
        raise _refused(spec, error) from None
    scheme = spec.partition("://")[0]
    files = {_url(scheme, name): info for name, info in found.items() if info["type"] == "file"}
    if not files:
        raise SpliceError(f"{spec}: no file matches")
    _states.update({url: state_of(info) for url, info in files.items()})
    _bytes.update({url: info["size"] for url, info in files.items()})
    return sorted(files)


def is_directory(url: str) -> bool:
    """Whether files lie below it."""
    return url not in _states and location(url).is_dir()


def list_store(url: str, patterns: tuple[str, ...]) -> Listing:
    """All files below `url` that match one of the patterns, by the rules of `list_tree`. Raises SpliceError without access."""
    path = location(url)
    try:
        with reaching(path):
            found = path.fs.find(path.path, detail=True)  # type: ignore[attr-defined]
    except (OSError, BuildFailed) as error:
        raise _refused(url, error) from None
    scheme = url.partition("://")[0]
    infos = {_url(scheme, name)[len(url) + 1 :]: info for name, info in found.items()}
    directories = {name: tuple(name.split("/")[:-1]) for name in infos}
    repositories = {parts[: parts.index(".git")] for parts in directories.values() if ".git" in parts}
    built = {parts[: parts.index(LOCK)] for parts in directories.values() if LOCK in parts} | {
        directories[name] for name in infos if posixpath.basename(name) == LOCK
    }
    matches = glob_matcher(patterns)
    files: list[File] = []
    skipped: Counter[str] = Counter()
    for name, info in infos.items():
        above = [directories[name][:i] for i in range(len(directories[name]) + 1)]
        if not name or name.endswith("/"):
            continue
        if any(part.startswith(".") for part in name.split("/")):
            skipped["hidden"] += 1
        elif any(parts in built for parts in above if parts):
            skipped["directory of a build"] += 1
        elif matches is not None and not matches(name):
            skipped["unmatched " + (os.path.splitext(name)[1] or "without extension")] += 1
        else:
            owner = next((parts for parts in reversed(above) if parts in repositories), None)
            repo = "/".join(owner) if owner is not None else (directories[name][:1] or ("",))[0]
            files.append(File(name, repo or ".", info["size"]))
            _states[f"{url}/{name}"] = state_of(info)
            _bytes[f"{url}/{name}"] = info["size"]
    files.sort()
    return Listing(files, skipped)


def size_of(url: str) -> int:
    """Bytes of a file."""
    if url not in _bytes:
        _bytes[url] = location(url).stat().st_size
    return _bytes[url]


def state(url: str) -> str:
    """What changes when the file does; "gone" where it is not there."""
    if url not in _states:
        path = location(url)
        try:
            with reaching(path):
                _states[url] = state_of(path.fs.info(path.path))  # type: ignore[attr-defined]
        except FileNotFoundError:
            return "gone"
    return _states[url]


def fetched(name: str) -> str:
    """The path to open for a file of a unit, from its printable form: of a store that of a copy.

    Raises FileNotFoundError and PermissionError, which are the file's; BuildFailed where the store or this disk fails, which is
    no reason to leave the file out.
    """
    if not is_url(name):
        return os_path(name)
    with reaching(location(name)):
        return str(local(location(name)))


@contextmanager
def head(url: str) -> Iterator[str]:
    """The path of a copy of the file's first bytes, as long as the context lasts."""
    path = location(url)
    with reaching(path), scratch(path.name) as copy:
        copy.write_bytes(path.fs.cat_file(path.path, start=0, end=min(HEAD_BYTES, size_of(url))))  # type: ignore[attr-defined]
        yield str(copy)


def read_objects(root: str, names: Sequence[str], limit: int) -> Iterator[tuple[str, bytes | OSError]]:
    """(name, first `limit` bytes or why not) of each file below `root`, many asked for at a time."""
    path = location(root)
    fs = path.fs  # type: ignore[attr-defined]
    for i in range(0, len(names), TOGETHER):
        some = names[i : i + TOGETHER]
        keys = [(path / name).path for name in some]
        with reaching(path):
            for name, key, answer in zip(some, keys, fs.cat_ranges(keys, 0, limit, on_error="return"), strict=True):
                if isinstance(answer, bytes | bytearray | memoryview):
                    yield name, bytes(answer)
                elif isinstance(answer, FileNotFoundError | PermissionError):
                    yield name, OSError(answer.errno or errno.ENOENT, os.strerror(answer.errno or errno.ENOENT))
                elif fs.info(key)["size"] == 0:  # a range of nothing is refused
                    yield name, b""
                else:
                    raise answer


def _url(scheme: str, name: str) -> str:
    return f"{scheme}://{name.partition('://')[2] or name}"


def _refused(url: str, error: Exception) -> SpliceError:
    reason = str(error.__cause__ or error).strip() or type(error).__name__
    return SpliceError(
        f"{printable(url)}: cannot be listed ({reason}); credentials come from the environment: {credentials(url)}"
    )
