"""Stages as Beam pipelines: Create(descriptors) | Reshuffle | ParDo(run task).

Only descriptors of some hundred bytes pass through Beam; documents, indexes and tokens lie in files. Nothing is read
back from Beam either: what a task did is in its receipt, so any runner that can run a ParDo will do.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence

from splice.errors import BuildFailed, SpliceError
from splice.task import Task, failure_of, forget_failures, leave_reason, receipts, run_task

from .processes import TaskProcesses


def runner_options(given: Sequence[str], workers: int) -> list[str]:
    """Beam's options for a build: those given after `--` over the local defaults.

    Locally the tasks are threads of one process: what is dear in them (tokenising, the engine, Parquet) runs without
    the GIL, an index is mapped once, and nothing is imported twice. Raises SpliceError for an option Beam does not
    know, which Beam itself would drop in silence.
    """
    options = list(given)
    if not any(option.split("=")[0] == "--runner" for option in options):
        # Named, because the plain DirectRunner tries to download another runner first.
        options.append("--runner=FnApiRunner")
    if _is_local(options):
        if _value(options, "--direct_num_workers") is None:
            options.append(f"--direct_num_workers={workers}")
        if _value(options, "--direct_running_mode") is None:
            options.append("--direct_running_mode=in_memory")
        if _value(options, "--default_sdk_harness_log_level") is None:
            options.append("--default_sdk_harness_log_level=ERROR")  # what worker processes would print
    if given:
        _refuse_unknown(options)
    return options


def load_beam() -> None:
    """Import Beam, which takes a second or two, at a moment of the caller's choosing."""
    with _quiet():
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
                _run_pipeline(wave, options, threads)
    except Exception as error:
        failure = failure_of(tasks)  # rather than the error itself, to whose message Beam adds words of its own
        if failure is None and isinstance(error, SpliceError):
            raise
        raise (failure or BuildFailed(f"the runner failed: {type(error).__name__}: {error}")) from error
    failure = failure_of(tasks)
    if failure is not None:
        raise failure
    lost = [task for task, receipt in zip(tasks, receipts(tasks), strict=True) if receipt is None]
    if lost:
        raise BuildFailed(
            f"the runner ended without an error, but {len(lost)} of {len(tasks)} tasks left no receipt "
            f"(first: {lost[0].stage}/{lost[0].name}); run the same command again to go on"
        )


def _waves(tasks: list[Task]) -> Iterator[list[Task]]:
    """The tasks whose stage need not wait for another's among them, and so on until none is left."""
    while tasks:
        stages = {task.stage for task in tasks}
        yield [task for task in tasks if task.after not in stages]
        tasks = [task for task in tasks if task.after in stages]


def _run_pipeline(tasks: list[Task], options: list[str], threads: int) -> None:
    with _quiet():
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        pipeline = beam.Pipeline(options=PipelineOptions(options))
        descriptors = [task.to_json() for task in tasks]
        _ = (
            pipeline
            | "Tasks" >> beam.Create(descriptors, reshuffle=False)
            | beam.Reshuffle()
            | "Run" >> beam.Map(_run, threads)
        )
        with _sharing_out(tasks) if runs_here(options) else contextlib.nullcontext():
            pipeline.run().wait_until_finish()


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
    """While inside, tasks that run in this process may be handed to `processes`."""
    global _local
    _local = processes
    try:
        yield
    finally:
        _local = None


def _is_local(options: Sequence[str]) -> bool:
    return (_value(options, "--runner") or "").rsplit(".", 1)[-1] == "FnApiRunner"


def runs_here(options: Sequence[str]) -> bool:
    """Whether the tasks run in threads of this process."""
    return _is_local(options) and _value(options, "--direct_running_mode") == "in_memory"


def _value(options: Sequence[str], name: str) -> str | None:
    for i, option in enumerate(options):
        if option == name:
            return options[i + 1] if i + 1 < len(options) else ""
        if option.startswith(name + "="):
            return option.split("=", 1)[1]
    return None


def _refuse_unknown(options: list[str]) -> None:
    import difflib

    with _quiet():
        from apache_beam.options.pipeline_options import PipelineOptions

        if "dask" in (_value(options, "--runner") or "").lower():
            from apache_beam.runners.dask import dask_runner  # noqa: F401 - registers its options

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for kind in PipelineOptions.__subclasses__():
        with contextlib.suppress(argparse.ArgumentError):
            kind._add_argparse_args(parser)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            _, unknown = parser.parse_known_args(options)
    except SystemExit:
        raise SpliceError(f"after `--`: {said.getvalue().strip().splitlines()[-1]}") from None
    if unknown:
        name = unknown[0].split("=")[0]
        known = [option for action in parser._actions for option in action.option_strings]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpliceError(f"after `--`: Beam has no option {name}{hint} (splice's own options go before `--`)")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Beam warns at import of extras that no build uses; errors still come through as exceptions."""
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    logging.getLogger("root").setLevel(logging.ERROR)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
