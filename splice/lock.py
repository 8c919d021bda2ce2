"""One build or one training at a time on a directory.

On this machine, and on a shared file system: a lock that the system lets go of when its holder dies. In a store: a lease,
renewed while its holder lives. Its file carries a number and is created by one contender only, so a lease that was not
renewed is taken over by creating the next number, and whoever comes back late finds a higher one and stops, at the latest when
its stage ends. Until it does, both write the same bytes, each file whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BuildFailed
from .files import LOCK, read_json
from .storage import create, is_remote, modified, names, overwrite, remove

LEASE_SECONDS = 60.0  # without a sign of life, by the store's clock
RENEW_SECONDS = 15.0


class Held:
    """A directory that is held; `check` raises BuildFailed once it no longer is."""

    def check(self) -> None:
        """A lock of the system is held until it is let go of."""


@contextmanager
def locked(directory: Path, what: str = "build") -> Iterator[Held]:
    """Hold `directory` for one build, or whatever `what` says. Raises BuildFailed with who holds it when another does."""
    if is_remote(directory):
        with _leased(directory, what) as lease:
            yield lease
        return
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(directory, what, read_json(path)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_myself()).encode(), 0)
        yield Held()
    finally:
        os.close(descriptor)


def _myself() -> dict[str, Any]:
    return {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _refusal(directory: Path, what: str, holder: dict[str, Any] | None) -> BuildFailed:
    try:
        assert holder is not None
        who = f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (AssertionError, KeyError, TypeError):
        who = "its holder is not named"
    return BuildFailed(f"{directory}: another {what} is working here ({who}); wait for it, or give another directory")


@dataclass
class Lease(Held):
    """A lease of a directory in a store, of which `number` is the highest as long as it is held."""

    directory: Path
    number: int
    what: str
    lost: BuildFailed | None = None

    def check(self) -> None:
        """Raise BuildFailed where another build has taken over, or the lease could not be renewed in time."""
        if self.lost is not None:
            raise self.lost

    def renew(self, stop: threading.Event) -> None:
        """Show signs of life until told to stop, or another has taken over."""
        renewed = time.monotonic()
        beats = 0
        while not stop.wait(RENEW_SECONDS):
            beats += 1
            try:
                highest = _highest(self.directory)
                if highest > self.number:
                    holder = read_json(_holder(self.directory, highest))
                    self.lost = _refusal(self.directory, self.what, holder)
                    return
                overwrite(_beat(self.directory, self.number), str(beats).encode())
                renewed = time.monotonic()
            except Exception as error:  # the store may be back in a moment
                if time.monotonic() - renewed > LEASE_SECONDS:
                    self.lost = BuildFailed(
                        f"{self.directory}: the lock could not be renewed for {LEASE_SECONDS:.0f} seconds ({error}), and another "
                        f"{self.what} may have taken over; run the same command again to go on"
                    )
                    return


@contextmanager
def _leased(directory: Path, what: str) -> Iterator[Lease]:
    lease = Lease(directory, _acquire(directory, what), what)
    stop = threading.Event()
    renewer = threading.Thread(target=lease.renew, args=(stop,), name="lease", daemon=True)
    renewer.start()
    try:
        yield lease
    finally:
        stop.set()
        renewer.join()
        with suppress(Exception):  # it ends by itself too
            _forget(directory, lease.number)


def _acquire(directory: Path, what: str) -> int:
    """The number of a lease that is ours now. Raises BuildFailed where another holds it."""
    highest = _highest(directory)
    if highest:
        holder = read_json(_holder(directory, highest))
        if holder is not None and not _is_dead(directory, highest, holder):
            raise _refusal(directory, what, holder)
    mine = highest + 1
    overwrite(_beat(directory, mine), b"0")
    me = {**_myself(), "machine": _machine(), "started": _started(os.getpid()), "token": secrets.token_hex(8)}
    if not create(_holder(directory, mine), json.dumps(me).encode()):
        raise _refusal(directory, what, read_json(_holder(directory, mine)))
    for number in _numbers(directory):
        if number < mine:
            _forget(directory, number)
    return mine


def _is_dead(directory: Path, number: int, holder: dict[str, Any]) -> bool:
    """Whether the holder of a lease is gone: its process, if it ran here, or its signs of life."""
    if holder.get("machine") == _machine() and _started(holder.get("process", 0)) != holder.get("started"):
        return True
    now = directory / LOCK / f"clock-{secrets.token_hex(8)}"
    overwrite(now, b"")
    try:
        return (modified(now) - modified(_beat(directory, number))).total_seconds() > LEASE_SECONDS
    except FileNotFoundError:
        return True
    finally:
        remove(now)


def _machine() -> str:
    """What process numbers are unique in: this start of this machine, and the namespace of its processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _started(process: int) -> str | None:
    """When a process of this machine started, in ticks; None where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _numbers(directory: Path) -> list[int]:
    found = (name.removesuffix(".json") for name in names(directory / LOCK) if name.endswith(".json"))
    return sorted(int(name) for name in found if name.isdigit())


def _highest(directory: Path) -> int:
    return max(_numbers(directory), default=0)


def _holder(directory: Path, number: int) -> Path:
    return directory / LOCK / f"{number:06d}.json"


def _beat(directory: Path, number: int) -> Path:
    return directory / LOCK / f"{number:06d}.beat"


def _forget(directory: Path, number: int) -> None:
    remove(_holder(directory, number))
    remove(_beat(directory, number))
