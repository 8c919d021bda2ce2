"""A directory as a source: one document a file, the repository from the directory (see listing).

Items of a unit: (root, ((repository, (path, ...)), ...)). The id of a document is its path relative to the root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from ..filters import max_bytes
from ..storage import is_url
from .listing import File
from .records import Document, Quarantined, Rejected, SourceSettings, Unit, os_path, os_reason, printable
from .remote import read_objects

MAX_FILES = 8192  # a unit of empty files is still a piece of work, and its description a message of bounded size
FIRST_READ_BYTES = 64 * 2**10  # most files end within it; what malloc does not have to map anew for each
READ_BYTES = 2**20
# O_NONBLOCK: a FIFO put in the place of a file would otherwise wait for a writer for ever.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def plan(source: str, root: str, files: Iterable[File], settings: SourceSettings, target_bytes: int) -> list[Unit]:
    """Units of about target_bytes of files, in the order of the files. Files too long to be read count for nothing."""
    limit = max_bytes(settings)
    units: list[Unit] = []
    members: list[File] = []
    size = 0
    for file in files:
        bytes_ = file.bytes if file.bytes <= limit else 0
        if members and (size + bytes_ > target_bytes or len(members) == MAX_FILES):
            units.append(_unit(source, root, members, size))
            members, size = [], 0
        members.append(file)
        size += bytes_
    if members:
        units.append(_unit(source, root, members, size))
    return units


def _unit(source: str, root: str, files: list[File], size: int) -> Unit:
    groups = groupby(files, key=lambda file: file.repo)
    items = tuple((printable(repo), tuple(printable(file.path) for file in members)) for repo, members in groups)
    return Unit(source, "tree", (printable(root), items), size)


def read(unit: Unit, settings: SourceSettings) -> Iterator[Document | Rejected | Quarantined]:
    """The unit's documents; a file of more bytes than max_chars characters can have is rejected by its first bytes."""
    root, groups = unit.items
    limit = max_bytes(settings)
    for repo, names in groups:
        for name, text in _texts(root, names, limit + 1):
            if isinstance(text, OSError):
                yield Quarantined(name, None, os_reason(text))
            elif len(text) > limit:
                yield Rejected(name, "too_long")
            else:
                yield Document(name, text, repo, name)


def _texts(root: str, names: Sequence[str], limit: int) -> Iterator[tuple[str, bytes | OSError]]:
    """(name, first `limit` bytes or why not) of each file."""
    if is_url(root):
        yield from read_objects(root, names, limit)
        return
    prefix = os.path.join(os_path(root), "")
    for name in names:
        try:
            yield name, read_file(prefix + os_path(name), limit)
        except OSError as error:
            yield name, error


def read_file(path: str, limit: int) -> bytes:
    """The first `limit` bytes of a file. os.open and os.read cost half of what open() does."""
    fd = os.open(path, OPEN_FLAGS)
    try:
        # A regular file may still answer short (NFS, FUSE): only an empty read is its end.
        first = os.read(fd, min(limit, FIRST_READ_BYTES))
        if not first and not stat.S_ISREG(os.fstat(fd).st_mode):  # asked of empty ones alone: it costs as much as open
            raise OSError(errno.EINVAL, "Not a regular file")
        left = limit - len(first)
        pieces: list[bytes] = []
        while left and (piece := os.read(fd, min(left, READ_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return first + b"".join(pieces) if pieces else first
    finally:
        os.close(fd)


def paths(unit: Unit) -> Iterator[tuple[str, str]]:
    """(name with its repository, path to stat) of each file: a `git init` in a tree moves documents to another pack."""
    root, groups = unit.items
    prefix = f"{root}/" if is_url(root) else os.path.join(os_path(root), "")
    for repo, names in groups:
        for name in names:
            yield f"{repo}\0{name}", prefix + os_path(name)
