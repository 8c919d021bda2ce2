"""Worker processes for the stages that hold the GIL: reading many small files, moving rows, laying out examples.

Two threads take longer than one to read 55,000 files, since each open, read and close hands the GIL over (measured:
11 s against 9 s; two processes 5 s). The engine, the tokenizer and Parquet release it, and there threads are better, as
an index is mapped and its dense rows made once. So a local build runs the first kind of task in processes
and the second in threads; on a cluster the engine's own workers run both.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from splice.errors import BuildFailed, worker_died
from splice.task import Task, run_task

T = TypeVar("T")
STAGES = frozenset({"read", "gather", "lay", "write"})
PARENT_POLL_SECONDS = 0.5


class TaskProcesses(AbstractContextManager["TaskProcesses"]):
    """A pool that lives as long as a build; with workers=1 there is none and tasks run in the calling thread.

    Processes are forked, with what they need imported already, as long as this process runs no other thread. Made
    later, they are started afresh, at half a second of CPU time each.
    """

    def __init__(self, workers: int) -> None:
        self.cpu_seconds = 0.0  # of tasks run in processes: the system tells only when a process has ended
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            for module in ("pyarrow.parquet", *(f"splice.stages.{stage}" for stage in sorted(STAGES))):
                importlib.import_module(module)
            context = multiprocessing.get_context("fork" if _may_fork() else "spawn")
            self._pool = ProcessPoolExecutor(
                workers, mp_context=context, initializer=_die_with, initargs=(os.getpid(),)
            )
            self._pool.submit(os.getpid)  # a forking pool starts its processes with the first task

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            _kill_workers()  # idle, or of no more use; one may wait for a lock that a killed one held, deaf to all else
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, task: Task, threads: int) -> None:
        """Run a task to its end. Raises its error, or BuildFailed when its process was killed."""
        if task.stage in STAGES:
            self.start(task.stage, run_task, task, threads)()
        else:
            run_task(task, threads)

    def start(self, stage: str, function: Callable[..., T], *args: Any) -> Callable[[], T]:
        """Begin `function(*args)` in a process; what is given back waits for its result, and raises as `run` does.

        Without processes it is done before this returns.
        """
        if self._pool is None:
            value = function(*args)
            return lambda: value
        with _told_of_the_dead(stage):
            future = self._pool.submit(_timed, function, *args)

        def result() -> T:
            with _told_of_the_dead(stage):
                value, seconds = future.result()
            with self._lock:
                self.cpu_seconds += seconds
            return value

        return result


@contextmanager
def _told_of_the_dead(stage: str) -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        _kill_workers()
        raise BuildFailed(worker_died(stage)) from None


def _kill_workers() -> None:
    for process in multiprocessing.active_children():
        process.kill()


def _may_fork() -> bool:
    """Whether this process has no thread that could hold a lock at the fork. Arrow's allocator has one that lets go."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return len(names) - names.count("jemalloc_bg_thd") == 1


def _timed(function: Callable[..., T], *args: Any) -> tuple[T, float]:
    """Its value and the CPU seconds it took; it has the process to itself."""
    before = time.process_time()
    return function(*args), time.process_time() - before


class _NoPandas:
    """Answers an import of pandas as where it is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _keep_pandas_out() -> None:
    """Let pyarrow look for pandas now and find none: it would import it, 0.3 s, to ask of a list whether it is a Series."""
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)  # type: ignore[arg-type]
    pa.array([0])
    sys.meta_path.remove(_NoPandas)  # type: ignore[arg-type]


def _die_with(driver: int) -> None:
    """A worker ends when the driver does, however that died; Ctrl-C is the driver's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _keep_pandas_out()

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
