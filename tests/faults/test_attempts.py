"""An engine may run a task twice, at the same time or long after another attempt ended: the bytes stay the same."""

from __future__ import annotations

import contextlib
import importlib
import threading

import pytest
from processes import wait_for

from splice import files
from splice.pipelines import beam
from splice.storage import location
from splice.task import Task


@pytest.fixture
def build_here(tree, tokenizer_file, tmp_path):
    """A build in this process, one task at a time; gives its exit code and output."""
    from splice.cli import run

    def build(*more: object) -> tuple[int, object]:
        output = tmp_path / "out"
        words = ["build", tree, "--output", output, "--length", 512, "--shard-tokens", 8192, "--workers", 1,
                 "--tokenizer", tokenizer_file, *more]  # fmt: skip
        return run(list(map(str, words))), output

    return build


def attempt(task: Task, threads: int) -> dict[str, object]:
    """The work of a task, whether it is done or not; no receipt."""
    stage = importlib.import_module(f"splice.stages.{task.stage}")
    return stage.run(task.args, location(task.directory), threads)


def in_vain(task: Task, threads: int) -> None:
    """An attempt for which there may be no directory any more."""
    with contextlib.suppress(FileNotFoundError):
        attempt(task, threads)


def test_attempts_at_the_same_time(build_here, built, same_dataset, monkeypatch):
    run_task = beam.run_task
    receipts: list[tuple[str, list[object]]] = []

    def twice(task: Task, threads: int = 1):
        found: list[object] = []
        barrier = threading.Barrier(2)

        def one() -> None:
            barrier.wait()
            found.append(attempt(task, threads))

        pair = [threading.Thread(target=one) for _ in range(2)]
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()
        receipts.append((task.stage, found))
        return run_task(task, threads)

    monkeypatch.setattr(beam, "run_task", twice)
    monkeypatch.setattr("splice.pipelines.processes.run_task", twice)
    monkeypatch.setattr("splice.pipelines.stages.PACKS_AT_HAND", 0)  # so that there is a stage "lay"
    code, output = build_here()
    assert code == 0
    same_dataset(built, output)
    assert {stage for stage, _ in receipts} >= {
        "read",
        "assign",
        "gather",
        "tokenise",
        "index",
        "search",
        "plan",
        "lay",
        "write",
    }
    for stage, found in receipts:
        assert len(found) == 2, f"an attempt of {stage} failed beside the other"
        assert found[0] == found[1], stage
    assert not list(output.rglob(".tmp-*"))


@pytest.mark.parametrize("stage", ["read", "assign", "gather", "tokenise", "index", "search", "plan", "lay", "write"])
def test_an_attempt_that_ends_after_the_build(build_here, built, same_dataset, monkeypatch, stage):
    """A slow worker: its attempt stands before its first file appears until another one, and the whole build, are done."""
    run_task = beam.run_task
    slow: list[threading.Thread] = []
    standing, go_on = threading.Event(), threading.Event()
    replace = files.os.replace

    def held(source, target):
        if threading.current_thread() in slow:
            standing.set()
            go_on.wait(60)
        return replace(source, target)

    def with_a_slow_attempt(task: Task, threads: int = 1):
        if task.stage == stage and not slow:
            slow.append(threading.Thread(target=in_vain, args=(task, threads)))
            slow[0].start()
            assert standing.wait(60)
        return run_task(task, threads)

    monkeypatch.setattr(files.os, "replace", held)
    monkeypatch.setattr(beam, "run_task", with_a_slow_attempt)
    monkeypatch.setattr("splice.pipelines.processes.run_task", with_a_slow_attempt)
    monkeypatch.setattr("splice.pipelines.stages.PACKS_AT_HAND", 0)
    code, output = build_here()
    assert code == 0
    assert standing.is_set()
    same_dataset(built, output)
    assert not [path for kept in ("plan", "graph", "documents") for path in (output / kept).glob(".tmp-*")]
    go_on.set()
    slow[0].join(60)
    wait_for(lambda: not slow[0].is_alive())
    same_dataset(built, output)
    assert not list((output / "data").glob(".tmp-*"))
