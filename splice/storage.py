"""Where files lie: a path of this machine, or a URL of a store that all workers reach (s3://, gs://, hdfs://).

A place is a `Path` either way: of a URL universal_pathlib's, which joins, lists and reads as pathlib does, through fsspec.
Work on a URL is work on local files: `local` fetches what is to be read, as readers map their files, and what is written is
sent when it is whole (splice.files). Credentials come from the environment, as the store's own library finds them.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from .errors import SpliceError, StoreFailed

# Scheme -> what brings it: an extra of this package, and where to look for credentials.
EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs", "hdfs": "hdfs"}
LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "hdfs_native"}
HDFS = "hdfs_native.fsspec.HdfsFileSystem"
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_ENDPOINT_URL for another server",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hdfs": "HADOOP_CONF_DIR, and a Kerberos ticket where the cluster asks for one",
}
WHOLE_AT_ONCE = ("s3", "gs", "gcs")  # an object appears when all of it is there; elsewhere a rename does it
TEMPORARY = ".tmp-"
TOGETHER = 64  # small files asked for at the same time
THREADS = 16  # that ask, where a store's library has no other way
CACHE_SHARE = 2  # of the disk: what is fetched may fill half of what is free


def credentials(url: str) -> str:
    """Where the store of a URL looks for credentials."""
    return CREDENTIALS.get(url.partition("://")[0], "as the store's own library finds them")


def is_url(place: str | Path) -> bool:
    """Whether a place is a URL and no path of this machine."""
    return "://" in str(place)


def location(place: str | Path) -> Path:
    """The place as a path that can be worked with; of this machine it is `Path(place)`.

    Raises SpliceError for a store that is not known or not installed, and for a URL with credentials in it.
    """
    if not isinstance(place, str):
        return place
    return _of_url(place) if is_url(place) else Path(place)


@cache
def _of_url(url: str) -> Path:
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0] and ":" in rest.partition("@")[0]:
        raise SpliceError(
            f"{scheme}://***@{rest.partition('@')[2]}: a URL must not hold a secret; credentials come from the environment "
            f"({credentials(url)})"
        )
    if scheme not in EXTRAS:
        raise SpliceError(
            f"{url}: no store of kind {scheme}://; known: {', '.join(f'{s}://' for s in EXTRAS)} and paths"
        )
    if scheme in WHOLE_AT_ONCE and not rest.strip("/"):
        raise SpliceError(f"{url}: names no bucket")
    if scheme not in WHOLE_AT_ONCE and not rest.startswith("/"):
        raise SpliceError(
            f"{url}: write {scheme}:///PATH; the name node is that of the Hadoop configuration (fs.defaultFS)"
        )
    try:
        import fsspec
        from upath import UPath

        importlib.import_module(LIBRARIES[scheme])
        if scheme == "hdfs":  # instead of fsspec's own, which wants a JVM in each process
            fsspec.register_implementation("hdfs", HDFS, clobber=True)
    except ImportError as error:
        raise SpliceError(
            f"{url}: needs {error.name}, which is not installed: pip install 'splice-data[{EXTRAS[scheme]}]'"
        ) from None
    logging.getLogger("gcsfs").setLevel(
        logging.ERROR
    )  # it warns at each request that it may not ask what kind a bucket is
    # Other workers write there: a listing that was kept would hide what they did.
    options = {"use_listings_cache": False} if scheme in WHOLE_AT_ONCE else {}
    return UPath(url.rstrip("/"), **options)  # type: ignore[return-value]


def is_remote(path: Path) -> bool:
    """Whether a path that `location` gave is of a store."""
    return not isinstance(path, Path)


def local(path: Path) -> Path:
    """A file of this machine with the same bytes: the path itself, or a copy that was fetched now or before.

    Copies are kept in the directory SPLICE_CACHE names (default: one below the system's temporary directory), the least
    recently used ones are removed. An open or mapped copy stays readable. Raises FileNotFoundError, and StoreFailed where the
    store fails.
    """
    if not is_remote(path):
        return path
    with reaching(path):
        info = _fs(path).info(path.path)
        copy = cached_copy(path, info)
        if copy.exists():
            with suppress(OSError):
                os.utime(copy)
            return copy
        _make_room(info["size"])
        with scratch(path.name) as temporary:
            _fs(path).get_file(path.path, str(temporary))
            found = temporary.stat().st_size
            if found != info["size"]:
                raise StoreFailed(
                    f"{path}: {found} bytes came of {info['size']}; it was changed or the connection broke"
                )
            os.replace(temporary, copy)
    return copy


def local_directory(path: Path) -> Path:
    """A directory of this machine with all that lies below `path`; as `local` of each file."""
    if not is_remote(path):
        return path
    with reaching(path):
        fs = _fs(path)
        found = {name: info for name, info in fs.find(path.path, detail=True).items() if info["type"] == "file"}
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        states = "".join(f"{name} {state_of(info)}\n" for name, info in sorted(found.items()))
        copy = _cached(path, states)
        if copy.is_dir():
            with suppress(OSError):
                os.utime(copy)
        else:
            _make_room(sum(info["size"] for info in found.values()))
            with scratch(path.name) as made:
                for name in found:
                    target = made / name.removeprefix(_key(path)).strip("/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    fs.get_file(name, str(target))
                with suppress(OSError):  # another process was first
                    os.replace(made, copy)
    return copy


def send(temporary: Path, path: Path, keep: bool) -> None:
    """Make a local file, or all that is below a local directory, appear at `path` in its store, each file whole or not at all.

    keep: the copy is likely to be read here soon. Names that sort last come last: markers of a directory are JSON files,
    which follow the arrays they vouch for.
    """
    if temporary.is_dir():
        for file in sorted(temporary.iterdir(), key=lambda file: (file.suffix == ".json", file.name)):
            send(file, path / file.name, keep)
        return
    with reaching(path):
        fs = _fs(path)
        if path.protocol in WHOLE_AT_ONCE:
            fs.put_file(str(temporary), path.path)
        else:
            with _renamed(path) as beside:
                fs.put_file(str(temporary), beside)
        if keep:
            copy = cached_copy(path, fs.info(path.path))
            if not copy.exists():
                _make_room(temporary.stat().st_size)
                shutil.move(temporary, copy)


def read_all(paths: Sequence[Path]) -> list[bytes | None]:
    """The bytes of small files, many asked for at a time where they are of a store; None for one that is not there."""
    if not paths or not is_remote(paths[0]):
        return [_read(path) for path in paths]
    found: dict[str, Any] = {}
    with reaching(paths[0]):
        for i in range(0, len(paths), TOGETHER):
            some = [_key(path) for path in paths[i : i + TOGETHER]]
            found |= dict(zip(some, _cat(paths[0], [(key, None, None) for key in some]), strict=True))
        answers = [found.get(_key(path)) for path in paths]
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                raise answer
    return [None if isinstance(answer, Exception) else answer for answer in answers]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_ranges(wanted: Sequence[tuple[Path, int, int]]) -> list[bytes]:
    """Bytes start .. stop of files, many asked for at a time where they are of a store, which all or none are.

    Raises FileNotFoundError, and StoreFailed where the store fails or a file is shorter.
    """
    found: list[bytes] = []
    if wanted and is_remote(wanted[0][0]):
        for i in range(0, len(wanted), TOGETHER):
            some = wanted[i : i + TOGETHER]
            with reaching(some[0][0]):
                answers = _cat(some[0][0], [(_key(path), start, stop) for path, start, stop in some])
                for answer in answers:
                    if isinstance(answer, Exception):
                        raise answer
            found += answers
    else:
        for path, ranges in groupby(wanted, key=itemgetter(0)):
            with open(path, "rb") as file:
                found += [os.pread(file.fileno(), stop - start, start) for _, start, stop in ranges]
    for (path, start, stop), data in zip(wanted, found, strict=True):
        if len(data) != stop - start:
            raise StoreFailed(f"{path}: damaged (it ends before byte {stop}); remove {path.parent} and build again")
    return found


def _cat(path: Path, pieces: Sequence[tuple[str, int | None, int | None]]) -> list[Any]:
    """Bytes start .. stop of files of the store of `path` (None, None: all of it), or what went wrong with each, at the same time."""
    fs = _fs(path)
    if fs.async_impl:
        keys, starts, stops = (list(column) for column in zip(*pieces, strict=True))
        return fs.cat_ranges(keys, starts, stops, on_error="return")

    def one(piece: tuple[str, int | None, int | None]) -> Any:
        try:
            return fs.cat_file(*piece)
        except Exception as error:
            return error

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, pieces))


def exists(path: Path) -> bool:
    """Whether there is such a file."""
    if not is_remote(path):
        return path.exists()
    with reaching(path):
        return _fs(path).exists(path.path)


def names(directory: Path) -> set[str]:
    """The names of what is directly in a directory; none where it is not there."""
    try:
        if not is_remote(directory):
            return set(os.listdir(directory))
        with reaching(directory):
            listed = _fs(directory).ls(directory.path, detail=False)
            return {name.rstrip("/").rpartition("/")[2] for name in listed if name.rstrip("/") != _key(directory)}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def sizes(directory: Path) -> dict[str, int]:
    """Name -> bytes of each file directly in a directory; none where it is not there."""
    try:
        if not is_remote(directory):
            return {entry.name: entry.stat().st_size for entry in os.scandir(directory) if entry.is_file()}
        with reaching(directory):
            listed = _fs(directory).ls(directory.path, detail=True)
            return {i["name"].rpartition("/")[2]: i["size"] for i in listed if i["type"] == "file"}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def create(path: Path, data: bytes) -> bool:
    """Write a small file unless it is there; whether this call did. Of several at a time one does."""
    if not is_remote(path):
        try:
            with open(path, "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True
    with reaching(path):
        try:
            if path.protocol in WHOLE_AT_ONCE:
                _fs(path).pipe_file(path.path, data, mode="create")
            else:
                with _renamed(path, overwrite=False) as beside:
                    _fs(path).pipe_file(beside, data)
        except Exception:
            # Taken, or ours: an answer that was lost on its way makes the library ask twice.
            there = read_all([path])[0]
            if there is None:
                raise
            return there == data
    return True


@contextmanager
def _renamed(path: Path, overwrite: bool = True) -> Iterator[str]:
    """A name beside `path`, in a store where a file is seen while it is written; renamed onto it at the end.

    Without `overwrite` the rename fails where `path` exists, and what was written is removed.
    """
    fs = _fs(path)
    beside = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}-{path.name}").path
    fs.makedirs(path.parent.path, exist_ok=True)
    try:
        yield beside
        fs.mv(beside, path.path, overwrite=overwrite)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(beside)
        raise


def overwrite(path: Path, data: bytes) -> None:
    """Write a small file of a store, whole, over what is there."""
    with reaching(path):
        if path.protocol in WHOLE_AT_ONCE:
            _fs(path).pipe_file(path.path, data)
        else:
            with _renamed(path) as beside:
                _fs(path).pipe_file(beside, data)


def modified(path: Path) -> datetime:
    """When a file of a store was written, by the store's clock."""
    with reaching(path):
        return _fs(path).modified(path.path)


def remove(path: Path) -> None:
    """Remove a file or a directory with all that is in it, if it is there."""
    if not is_remote(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        return
    with reaching(path), suppress(FileNotFoundError):
        _fs(path).rm(path.path, recursive=True)


def remove_all(directory: Path, files: Iterable[str]) -> None:
    """Remove files of a directory by their names."""
    files = list(files)
    if not is_remote(directory):
        for name in files:
            (directory / name).unlink(missing_ok=True)
    elif files:
        with reaching(directory):
            if directory.protocol in WHOLE_AT_ONCE:
                _fs(directory).rm([(directory / name).path for name in files])
            else:
                for name in files:
                    remove(directory / name)


def write_all(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write small files of a directory in a store, many at the same time."""
    chosen = list(files)
    if directory.protocol not in WHOLE_AT_ONCE:
        for name in chosen:
            overwrite(directory / name, files[name])
        return
    with reaching(directory):
        for i in range(0, len(chosen), TOGETHER):
            _fs(directory).pipe({(directory / name).path: files[name] for name in chosen[i : i + TOGETHER]})


def copy_all(source: Path, target: Path, files: Iterable[str]) -> None:
    """Copy files of one directory to another in a store: within a store of objects the bytes do not come by here."""
    files = list(files)
    if is_remote(source) and source.protocol == target.protocol and target.protocol in WHOLE_AT_ONCE:
        with reaching(target):
            for i in range(0, len(files), TOGETHER):
                some = files[i : i + TOGETHER]
                _fs(target).copy([(source / name).path for name in some], [(target / name).path for name in some])
    else:
        for name in files:
            send(local(source / name), target / name, keep=False)


def check_reachable(directory: Path, flag: str) -> None:
    """Raise SpliceError where a store cannot be written to, by writing to it."""
    probe = directory / f"{TEMPORARY}{secrets.token_hex(8)}-probe"
    try:
        with reaching(probe):
            overwrite(probe, b"")
            remove(probe)
    except (OSError, StoreFailed) as error:
        reason = str(error.__cause__ or error).strip()
        raise SpliceError(
            f"{directory}: cannot be written to ({reason}); give another {flag}, or credentials in the environment: "
            f"{credentials(str(directory))}"
        ) from None


@contextmanager
def reaching(path: Path) -> Iterator[None]:
    """What goes wrong on the way to a store becomes StoreFailed with the place; that a file is not there stays what it is."""
    try:
        yield
    except (FileNotFoundError, PermissionError, SpliceError):
        raise
    except Exception as error:
        raise StoreFailed(f"{path}: the store failed: {type(error).__name__}: {error}") from error


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A name of this machine, unique to the attempt, for a file or a directory on its way to a store."""
    temporary = _cache() / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}-{name}"
    try:
        yield temporary
    finally:
        remove(temporary)


def cached_copy(path: Path, info: dict[str, Any]) -> Path:
    """Where the copy of a file of a store lies. info: fsspec's; a file that was written anew has another copy."""
    return _cached(path, state_of(info))


def _cached(path: Path, state: str) -> Path:
    import xxhash

    return _cache() / f"{xxhash.xxh3_128_hexdigest(f'{path} {state}'.encode())}-{path.name}"


def state_of(info: dict[str, Any]) -> str:
    """What changes when a file of a store does."""
    marks = (info.get(name) for name in ("ETag", "etag", "md5Hash", "mtime", "modification_time", "LastModified"))
    return f"{info['size']} {next((mark for mark in marks if mark is not None), '')}"


def _fs(path: Path) -> Any:
    return path.fs  # type: ignore[attr-defined]


def _key(path: Path) -> str:
    return _fs(path)._strip_protocol(path.path)


@cache
def _cache() -> Path:
    """Raises SpliceError where someone else owns it: what is read from it must be what was fetched."""
    named = os.environ.get("SPLICE_CACHE")
    directory = Path(named) if named else Path(tempfile.gettempdir()) / f"splice-cache-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise SpliceError(f"{directory}: belongs to another user; name a directory of your own with SPLICE_CACHE")
    for leftover in directory.glob(f"{TEMPORARY}*"):
        if not _is_alive(leftover.name):
            remove(leftover)
    return directory


def _is_alive(temporary: str) -> bool:
    """Whether the process that a temporary name tells of is there (or another of its number)."""
    process = temporary.removeprefix(TEMPORARY).partition("-")[0]
    return not process.isdigit() or Path(f"/proc/{process}").exists()


def _make_room(needed: int) -> None:
    """Remove the copies used longest ago until those that stay, with `needed` bytes more, take their share of the disk."""
    directory = _cache()
    copies = []
    for entry in os.scandir(directory):
        if not entry.name.startswith(TEMPORARY):  # what is on its way is no copy yet
            with suppress(OSError):
                files = Path(entry).rglob("*") if entry.is_dir() else [entry]
                copies.append((entry.stat().st_mtime, sum(file.stat().st_size for file in files), entry.path))
    held = sum(size for _, size, _ in copies)
    limit = (shutil.disk_usage(directory).free + held) // CACHE_SHARE
    for _, size, path in sorted(copies):
        if held + needed <= limit:
            return
        with suppress(OSError):
            remove(Path(path))
            held -= size
