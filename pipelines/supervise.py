"""A build runs in a child process, so that one that is killed ends in a sentence and not in silence.

The kernel kills the largest process when memory runs out; a process can say nothing about its own SIGKILL, its parent
can. The fork happens before any thread or heavy import, so the parent stays at some ten megabytes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
LOST_GRACE_SECONDS = 3.0


def supervised(work: Callable[[], int]) -> int:
    """Run `work` in a child and give its exit code; 1, with the reason on stderr, when it was killed."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the command that was started
        if os.getppid() != parent:
            os._exit(1)
        code = 1
        try:
            code = work()
        except BaseException:  # os._exit below would swallow it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the child too
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killer = signal.Signals(os.WTERMSIG(status)).name
        print(f"splice: the build was killed by {killer}{_hint(killer)}.\n{RESUME}", file=sys.stderr)
        return 1
    return os.WEXITSTATUS(status)


RESUME = "What is done is kept: run the same command again and it goes on from there."


def _hint(killer: str) -> str:
    if killer == "SIGKILL":
        return " (by hand, or by the kernel when memory ran out: fewer --workers or --pack-documents need less)"
    return ""


class WorkerWatch:
    """Ends the driver with a clear error when a worker process dies: Beam's own runner would wait for it for ever.

    Only processes started while it watches count. A worker may also vanish because the stage is over, so one that is
    gone is an error only when the stage goes on for some seconds without it.
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._before = _children()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="worker-watch", daemon=True)

    def __enter__(self) -> WorkerWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        workers: set[int] = set()
        while not self._stop.wait(0.5):
            alive = _children() - self._before
            gone = workers - alive
            workers |= alive
            if gone and not self._stop.wait(LOST_GRACE_SECONDS):
                print(
                    f"splice: worker process {min(gone)} of stage {self.stage} died (killed by hand, or by the kernel "
                    f"when memory ran out).\n{RESUME}",
                    file=sys.stderr,
                    flush=True,
                )
                for worker in _children() - self._before:
                    os.kill(worker, signal.SIGKILL)
                os._exit(1)


def _children() -> set[int]:
    """Live child processes of this one (zombies are not)."""
    found = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            pids = listing.read_text().split()
        except OSError:
            continue
        found.update(int(pid) for pid in pids if _state(pid) not in ("Z", "X", ""))
    return found


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""
