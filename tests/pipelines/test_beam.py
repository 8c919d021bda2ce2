"""How tasks reach the workers: in which order, in how many pipelines, and what a failure leaves undone."""

from __future__ import annotations

import threading
import time

import pytest

from splice.files import write_json
from splice.pipelines import beam, runners
from splice.task import Task


@pytest.fixture
def ran(monkeypatch):
    """Instead of working, a task writes its receipt; those named "slow" take as long as all others together."""
    order: list[str] = []
    ended = threading.Event()

    def run(task: Task, threads: int) -> None:
        if task.name == "slow":
            ended.wait(20)
        if task.name == "bad":
            raise OSError("the disk is full")
        time.sleep(0.01)
        order.append(f"{task.stage}/{task.name}")
        if len([name for name in order if name.endswith("quick")]) == 12:
            ended.set()
        write_json(task.marker, {})

    monkeypatch.setattr(beam, "run_task", run)
    return order


def test_a_store_that_fails_does_not_hide_why_a_task_did(tmp_path, monkeypatch):
    from splice import task
    from splice.errors import StoreFailed

    def in_vain(path, value):
        raise StoreFailed(f"{path}: the store failed")

    def run(args, directory, threads):
        raise ValueError("the cause")

    monkeypatch.setattr(task, "write_json", in_vain)
    monkeypatch.setattr("splice.stages.read.run", run)
    with pytest.raises(ValueError, match="the cause"):
        task.run_task(Task("read", "0", str(tmp_path)))


def tasks(directory, stage: str, names: list[str], after: str = "") -> list[Task]:
    return [Task(stage, name, str(directory), after=after) for name in names]


def local(workers: int) -> list[str]:
    return runners.runner_options([], workers)


def test_a_long_task_keeps_no_other_waiting(tmp_path, ran):
    """Dealt out beforehand, half of the quick ones would wait for the slow one, and it for them until its time is up."""
    quick = [f"{i}-quick" for i in range(12)]
    started = time.monotonic()
    beam.run_tasks(tasks(tmp_path, "read", ["slow", *quick]), local(2), 1)
    assert time.monotonic() - started < 15
    assert ran[-1] == "read/slow"


@pytest.mark.parametrize("options", [local(3), [*local(3), "--direct_running_mode=multi_threading"]])
def test_a_stage_waits_for_the_one_it_reads(tmp_path, ran, options):
    first, second = [f"{i}" for i in range(5)], [f"{i}-quick" for i in range(12)]
    together = [*tasks(tmp_path, "search", second, after="index"), *tasks(tmp_path, "index", first)]
    beam.run_tasks(together, options, 1)
    assert len(ran) == len(together)
    assert {name.split("/")[0] for name in ran[:5]} == {"index"}


def test_a_stage_that_is_not_run_with_it_is_not_waited_for(tmp_path, ran):
    beam.run_tasks(tasks(tmp_path, "search", ["0", "1", "2"], after="index"), local(2), 1)
    assert len(ran) == 3


def test_what_needs_a_failed_task_is_not_begun(tmp_path, ran):
    together = [*tasks(tmp_path, "index", ["bad"]), *tasks(tmp_path, "search", ["0", "1", "2"], after="index")]
    with pytest.raises(Exception, match="disk is full"):
        beam.run_tasks(together, local(3), 1)
    assert ran == []
