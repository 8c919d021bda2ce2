"""Kill the build at any moment: it goes on where it stopped, to the same bytes, and never hangs or stays silent."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time

import pytest
from processes import alive, descendants, kill, start, wait_for, workers

KILLS = 20


def test_killed_twenty_times_it_ends_with_the_same_bytes(built, tree, tokenizer_file, tmp_path, same_dataset):
    output = tmp_path / "out"
    rng = random.Random(7)
    attempts = kills = resumed = 0
    began = time.monotonic()
    start(tree, tmp_path / "undisturbed", tokenizer_file).communicate(timeout=120)
    whole = time.monotonic() - began  # on this machine, at this hour
    while kills < KILLS or resumed <= 3:
        assert attempts < 5 * KILLS
        process = start(tree, output, tokenizer_file)
        time.sleep(rng.uniform(0.05, 0.9) * whole)
        family = [process.pid, *descendants(process.pid)]
        # Now the command itself, now the build below it, now one of its worker processes.
        victims = [*family[:2], *workers(process.pid)[:1]]
        kill(victims[attempts % len(victims)])
        attempts += 1
        process.communicate(timeout=60)
        wait_for(lambda family=family: not any(alive(pid) for pid in family))
        kills += process.returncode != 0
        if (output / "manifest.json").exists():  # it was faster: look at what it made, and start over
            same_dataset(built, output)
            shutil.rmtree(output)
        else:
            resumed += len(list(output.glob("work/*/done/*"))) > 0
    process = start(tree, output, tokenizer_file)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    same_dataset(built, output)
    assert not list(output.rglob(".tmp-*"))


def test_a_build_that_is_killed_says_so_and_how_to_go_on(tree, tokenizer_file, tmp_path):
    process = start(tree, tmp_path / "out", tokenizer_file)
    wait_for(lambda: (tmp_path / "out").exists())
    os.kill(descendants(process.pid)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "killed by SIGKILL" in errors
    assert "run the same command again" in errors


@pytest.mark.parametrize("mode", ["pool", "multi_processing"])
def test_a_killed_worker_ends_the_build_with_a_clear_error(tree, tokenizer_file, tmp_path, mode, same_dataset, built):
    """Beam's own runner waits for ever for a worker process that died."""
    output = tmp_path / "out"
    more = [] if mode == "pool" else ["--", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    process = start(tree, output, tokenizer_file, *more)
    wait_for(lambda: workers(process.pid))
    kill(workers(process.pid)[0])
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1, errors
    assert "died" in errors
    assert "run the same command again" in errors
    process = start(tree, output, tokenizer_file, *more)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    same_dataset(built, output)


def test_a_second_build_on_the_same_output_is_refused_with_who_holds_it(tree, tokenizer_file, tmp_path):
    output = tmp_path / "out"
    first = start(tree, output, tokenizer_file)
    wait_for(lambda: list(output.glob("work/*/done/*")))
    second = start(tree, output, tokenizer_file)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "another build is working here (process" in errors
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors


@pytest.mark.parametrize("mode", ["in_memory", "multi_processing"])
def test_an_interrupt_says_how_to_go_on(tree, tokenizer_file, tmp_path, mode):
    process = start(tree, tmp_path / "out", tokenizer_file, "--", f"--direct_running_mode={mode}")
    wait_for(lambda: list((tmp_path / "out").glob("work/*/done/*")))
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count("interrupted") == 1
    assert mode != "in_memory" or "Traceback" not in errors  # Beam's worker processes print theirs


def test_a_failing_task_is_named_with_its_host_and_cause(tree, tokenizer_file, tmp_path, monkeypatch, capsys):
    from splice.cli import run
    from splice.stages import index

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index, "run", fail)
    output = tmp_path / "out"
    arguments = ["build", tree, "--output", output, "--length", 512, "--workers", 1, "--tokenizer", tokenizer_file]
    assert run(list(map(str, arguments))) == 1
    said = capsys.readouterr().err
    assert "task index/00000 failed on" in said
    assert "No space left on device" in said
    monkeypatch.undo()
    assert run(list(map(str, arguments))) == 0


def test_an_attempt_that_failed_before_another_succeeded_is_no_failure(tmp_path):
    from splice.files import write_json
    from splice.task import Task, failure_of, leave_reason

    task = Task("index", "00000", str(tmp_path))
    leave_reason(task, OSError("the first attempt's disk"))
    assert "the first attempt's disk" in str(failure_of([task]))
    write_json(task.marker, {"documents": 1})
    assert failure_of([task]) is None


def test_a_busy_work_directory_leaves_no_claim_on_a_new_output(tree, tokenizer_file, tmp_path):
    work = ("--work", str(tmp_path / "work"))
    first = start(tree, tmp_path / "a", tokenizer_file, *work)
    wait_for(lambda: list((tmp_path / "work").glob("*/done/*")))
    second = start(tree, tmp_path / "b", tokenizer_file, *work)
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "another build is working here" in errors
    assert not (tmp_path / "b" / "build.json").exists()
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors
