"""One build or one training at a time on a directory: a lock that the system lets go of when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BuildFailed
from .files import LOCK


@contextmanager
def locked(directory: Path, what: str = "build") -> Iterator[None]:
    """Hold `directory` for one build, or whatever `what` says. Raises BuildFailed with who holds it when another does."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildFailed(
                f"{directory}: another {what} is working here ({_holder(path)}); wait for it, or give another directory"
            ) from None
        holder = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError):
        return "its holder is not named"
