"""One run of the driver: stages of tasks through Beam, and what each of them took."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from splice.lock import Held
from splice.settings import BuildSettings
from splice.storage import names, remove_all
from splice.task import Receipt, Task, receipts

from .beam import run_tasks
from .processes import TaskProcesses
from .progress import StageProgress
from .runners import runs_here
from .supervise import watching_workers


@dataclass
class StageTime:
    """What a stage cost in this run. reused: every task had its receipt already."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    tasks: int = 0
    reused: bool = True


@dataclass(frozen=True)
class Stage:
    """Tasks that run together, and the work in each (any unit)."""

    name: str
    tasks: list[Task]
    weights: list[int]


@dataclass
class Run:
    """One run of the driver: how tasks are run, the directories it holds, and what the stages took."""

    settings: BuildSettings
    options: list[str]
    console: Console
    processes: TaskProcesses
    held: list[Held]
    stages: dict[str, StageTime] = field(default_factory=dict)

    def stage(self, name: str, tasks: list[Task], weights: Sequence[int], threads: int = 0) -> list[Receipt]:
        """Run what has no receipt yet; the receipts of all tasks, in order.

        weights: the work in each, for the progress. threads: what a task may use inside; 0: its share of the workers.
        """
        self._check_locks()
        times = self.stages.setdefault(name, StageTime())
        done = receipts(tasks)
        todo = [(task, weight) for task, weight, r in zip(tasks, weights, done, strict=True) if r is None]
        times.tasks += len(todo)
        if todo:
            times.reused = False
            workers = self.settings.worker_count
            wall, cpu = time.monotonic(), self.cpu_seconds()
            waiting = [task for task, _ in todo]
            with StageProgress(self.console, name, waiting, [w for _, w in todo]), watching_workers(name):
                run_tasks(waiting, self.options, threads or max(1, workers // len(todo)))
            times.wall_seconds += time.monotonic() - wall
            times.cpu_seconds += self.cpu_seconds() - cpu
            self._check_locks()  # what comes next may remove what another build, which took over, reads
            done = receipts(tasks)
        return done

    def together(self, stages: list[Stage]) -> dict[str, list[Receipt]]:
        """Run stages, each after those it needs, as one where there are workers to share; receipts by stage.

        Apart, each would leave workers idle: while one tokenizer is trained, at the last blocks of a search.
        """
        todo = [stage for stage in stages if None in receipts(stage.tasks)]
        if len(todo) > 1 and (self.settings.worker_count > 1 or not runs_here(self.options)):
            tasks = [task for stage in todo for task in stage.tasks]
            weights = [weight for stage in todo for weight in stage.weights]
            self.stage(" + ".join(stage.name for stage in todo), tasks, weights, threads=1)
        else:
            todo = []
        return {
            stage.name: receipts(stage.tasks) if stage in todo else self.stage(stage.name, stage.tasks, stage.weights)
            for stage in stages
        }

    def receipts(self, tasks: list[Task]) -> list[Receipt | None]:
        """The receipt of each task, None of one that is to be run."""
        return receipts(tasks)

    def forget(self, tasks: list[Task], directory: Path, files: Callable[[Task], Iterable[str]]) -> None:
        """Let those tasks be run again whose files are no longer in a directory."""
        there = names(directory)
        gone = [task for task in tasks if not there.issuperset(files(task))]
        for done in {task.marker.parent for task in gone}:
            remove_all(done, names(done) & {task.marker.name for task in gone})

    def _check_locks(self) -> None:
        for lock in self.held:
            lock.check()

    def cpu_seconds(self) -> float:
        """Of this process, of children that have ended, and of the tasks that worker processes have ended."""
        return cpu_seconds() + self.processes.cpu_seconds


def cpu_seconds() -> float:
    """Of this process and of children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
