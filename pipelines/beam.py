"""Stages as Beam pipelines: Create(descriptors) | Reshuffle | ParDo(run task).

Only descriptors of some hundred bytes pass through Beam; documents, indexes and tokens lie in files. Nothing is read
back from Beam either: what a task did is in its receipt, so any runner that can run a ParDo will do.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from splice.errors import RESUME, BuildFailed, SpliceError
from splice.task import Task, failure_of, forget_failures, leave_reason, receipts, run_task

from .processes import TaskProcesses
from .runners import check_reachable, pipeline_options, quiet, runs_here, value

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.job_server import JobServer
    from apache_beam.runners.runner import PipelineResult, PipelineRunner

JOB_TASKS = 20_000  # all descriptors of a job go to each of its workers: 10 MB
LOST_WORKER = ("CANCELLED: call already cancelled", "SDK worker disconnected")  # as Flink and Spark, and Prism, tell it
WORKER_SECONDS = 300  # for a Dask worker to come: without one Dask would wait for ever


def load_beam() -> None:
    """Import Beam, which takes a second or two, at a moment of the caller's choosing."""
    with quiet():
        import apache_beam  # noqa: F401


def run_tasks(tasks: list[Task], options: list[str], threads: int) -> None:
    """Run the tasks that have no receipt and wait. threads: what one task may use inside.

    Raises SpliceError (the task's own, or BuildFailed with task, host and cause) when any of them failed.
    """
    forget_failures(tasks)
    try:
        if len(tasks) == 1 and runs_here(options):  # a pipeline would only add its quarter of a second
            _run_task(tasks[0], threads)
        elif runs_here(options):
            _run_pipeline(tasks, options, threads)
        else:
            for wave in _waves(tasks):
                for start in range(0, len(wave), JOB_TASKS):
                    _run_pipeline(wave[start : start + JOB_TASKS], options, threads)
    except Exception as error:
        failure = failure_of(tasks)  # rather than the error itself, to whose message Beam adds words of its own
        if failure is None and (isinstance(error, SpliceError) or (isinstance(error, OSError) and runs_here(options))):
            raise  # a full disk takes no reason either
        raise (failure or BuildFailed(f"the runner failed{_left(tasks)}: {_cause(error)}\n{RESUME}")) from error
    failure = failure_of(tasks)
    if failure is not None:
        raise failure
    if left := _left(tasks):
        raise BuildFailed(f"the runner ended without an error{left}\n{RESUME}")


def _left(tasks: list[Task]) -> str:
    """Which of the tasks are not done, as a part of a sentence; "" where all are."""
    left = [task for task, receipt in zip(tasks, receipts(tasks), strict=True) if receipt is None]
    return f", {len(left):,} of {len(tasks):,} tasks not done (first: {left[0].stage}/{left[0].name})" if left else ""


def _waves(tasks: list[Task]) -> Iterator[list[Task]]:
    """The tasks whose stage need not wait for another's among them, and so on until none is left."""
    while tasks:
        stages = {task.stage for task in tasks}
        yield [task for task in tasks if task.after not in stages]
        tasks = [task for task in tasks if task.after in stages]


def _run_pipeline(tasks: list[Task], options: list[str], threads: int) -> None:
    check_reachable(options)
    with quiet():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.runner import create_runner

        arguments = pipeline_options(options, len(tasks))
        runner = _with_one_job_server(create_runner(value(arguments, "--runner")))
        pipeline = beam.Pipeline(runner, PipelineOptions(arguments))
        descriptors = [task.to_json() for task in tasks]
        _ = (
            pipeline
            | "Tasks" >> beam.Create(descriptors, reshuffle=False)
            | beam.Reshuffle()
            | "Run" >> beam.Map(_run, threads)
        )
        with _sharing_out(tasks) if runs_here(options) else contextlib.nullcontext():
            _wait(pipeline.run())


def _with_one_job_server(runner: PipelineRunner) -> PipelineRunner:
    """Let a runner that starts a job server for itself do so once a build. Beam starts one for each job and keeps them all."""

    def once(options: PipelineOptions) -> JobServer:
        global _job_server
        if _job_server is None:
            _job_server = start(options)
            # In place of its own, which stops it, and waits for itself for ever where that was going on already.
            _job_server._sigint_handler = signal.getsignal(signal.SIGINT)
        return _job_server

    if start := getattr(runner, "default_job_server", None):
        runner.default_job_server = once
    return runner


_job_server: JobServer | None = None


def _wait(result: PipelineResult) -> None:
    """Wait for a job's end. On Ctrl-C the engine is asked to end it; the job servers of Flink and Spark only forget it."""
    client = getattr(result, "client", None)  # Dask's
    try:
        if client is not None:
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        result.wait_until_finish()
    except BaseException:
        with contextlib.suppress(Exception):  # it may have ended already, or its job server
            result.cancel()
        raise
    finally:
        if client is not None:
            client.close()


def _cause(error: BaseException) -> str:
    """The line of a runner's message that says why, out of the stack traces of two languages."""
    while error.__cause__ is not None:  # as Dask tells it
        error = error.__cause__
    if hasattr(error, "details"):  # grpc's
        return f"its job server was lost: {error.details()}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    java = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    python = [line for line in lines if re.match(r"\w+(Error|Exception)\b", line)]
    line = (python or java or lines[:1] or [""])[-1]
    if any(words in line for words in LOST_WORKER):
        line = f"a worker was lost (killed by hand, by the kernel when memory ran out, or with its host): {line}"
    return (
        line if isinstance(error, RuntimeError) else f"{type(error).__name__}: {line}"
    )  # Beam makes all that failed one


class _SharedOut:
    """Tasks that the threads of this process take from, each whichever is next and whose stage may begin.

    The local runner deals its elements out to the threads beforehand, and the thread that got the long tasks would be
    waited for. So whoever runs its first element takes tasks until there are none; later elements find nothing to do.
    """

    def __init__(self, tasks: list[Task]) -> None:
        self._waiting = list(tasks)
        self._open = Counter(task.stage for task in tasks)  # not done yet
        self._changed = threading.Condition()

    def run(self, threads: int) -> None:
        while (task := self._next()) is not None:
            try:
                _run_task(task, threads)
            except BaseException:
                with self._changed:
                    self._waiting.clear()  # the other threads end with the task they are at
                    self._changed.notify_all()
                raise
            with self._changed:
                self._open[task.stage] -= 1
                self._changed.notify_all()

    def _next(self) -> Task | None:
        with self._changed:
            while self._waiting:
                for i, task in enumerate(self._waiting):
                    if not self._open[task.after]:
                        return self._waiting.pop(i)
                self._changed.wait()
            return None


_shared_out: _SharedOut | None = None  # while a pipeline runs in threads of this process


@contextlib.contextmanager
def _sharing_out(tasks: list[Task]) -> Iterator[None]:
    global _shared_out
    _shared_out = _SharedOut(tasks)
    try:
        yield
    finally:
        _shared_out = None


def _run(descriptor: str, threads: int) -> None:
    if _shared_out is not None:
        _shared_out.run(threads)
    else:
        _run_task(Task.from_json(descriptor), threads)


def _run_task(task: Task, threads: int) -> None:
    if _local is None:
        run_task(task, threads)
        return
    try:
        _local.run(task, threads)
    except BuildFailed as error:
        leave_reason(task, error)
        raise


_local: TaskProcesses | None = None  # set in the driver's process alone: workers elsewhere run tasks themselves


@contextlib.contextmanager
def local_processes(processes: TaskProcesses) -> Iterator[None]:
    """While inside, tasks that run in this process may be handed to `processes`. A job server of its own ends with it."""
    global _local, _job_server
    _local = processes
    try:
        yield
    finally:
        _local = None
        if _job_server is not None:
            with quiet():
                _job_server.stop()
            _job_server = None
