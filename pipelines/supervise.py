"""A long command runs in a child process, so that one that is killed ends in a sentence and not in silence.

The kernel kills the largest process when memory runs out; a process can say nothing about its own SIGKILL, its parent
can. The fork happens before any thread or heavy import, so the parent stays at some ten megabytes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from splice.errors import RESUME, Interrupted, worker_died

PR_SET_PDEATHSIG = 1
INTERRUPT_SECONDS = 1.0  # between a worker's death by Ctrl-C and the driver's own


def supervised(work: Callable[[], int], what: str, memory: str, resume: str, interrupts: bool = False) -> int:
    """Run `work` in a child and give its exit code; 1, with the reason on stderr, when it was killed.

    what: its name in that sentence; memory: what needs less of it; resume: how to go on. interrupts: SIGINT is passed on as
    SIGTERM is, for work that takes one that came twice, from the terminal too, for one.
    """
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
    pass_on = signal.SIG_IGN if not interrupts else lambda *_: os.kill(child, signal.SIGINT)
    signal.signal(signal.SIGINT, pass_on)  # a terminal sends it to the child too
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killer = signal.Signals(os.WTERMSIG(status)).name
        hint = f" (by hand, or by the kernel when memory ran out: {memory})" if killer == "SIGKILL" else ""
        print(f"splice: {what} was killed by {killer}{hint}.\n{resume}", file=sys.stderr)
        return 1
    return os.WEXITSTATUS(status)


@contextmanager
def watching_workers(stage: str) -> Iterator[None]:
    """Ends the driver with a clear error when a worker process dies: Beam's local runner would wait for it for ever.

    Beam waits for each process it starts in a thread of its own, and that thread fails when the process did. Nobody
    looks at the thread but this hook. Ctrl-C reaches the workers too: then it is the driver's to end, unless Beam keeps it.
    """
    before = threading.excepthook
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def lost(failure: threading.ExceptHookArgs) -> None:
        if failure.thread is None or failure.thread.name != "run_worker":
            before(failure)
            return
        code, reason = 1, worker_died(stage, failure.exc_value)
        if interrupted.wait(INTERRUPT_SECONDS):
            time.sleep(INTERRUPT_SECONDS)
            code, reason = Interrupted.exit_code, f"interrupted. {RESUME}"
        print(f"splice: {reason}", file=sys.stderr, flush=True)
        try:
            for process in _descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        finally:
            os._exit(code)

    in_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, interrupt) if in_main else None
    threading.excepthook = lost
    try:
        yield
    finally:
        threading.excepthook = before
        if in_main:
            signal.signal(signal.SIGINT, previous)


def _descendants(process: int) -> list[int]:
    found = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a process that ends while it is looked at
            for child in map(int, listing.read_text().split()):
                found += [child, *_descendants(child)]
    return found
