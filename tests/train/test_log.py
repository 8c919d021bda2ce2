"""The log of a training run: what is written is what a run never stopped would have written, and what is shown is readable."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from splice.errors import SpliceError
from splice.train.log import RunLog, read_metrics
from splice.train.log.screen import LineScreen, RunningMean, duration

QUIET = Console(file=io.StringIO(), width=200)


def record(step, **other):
    return {
        "step": step, "tokens": step * 4096, "epoch": 0, "loss": 8.0 - step / 10, "lr": 3e-4, "grad_norm": 1.5,
        "tokens_per_second": 3100.0, "mfu": None, "memory_gib": 1.25, "seconds": 1.3,
    } | other  # fmt: skip


def result(loss=6.0):
    buckets = [{"from": 0, "to": 256, "loss": 6.5, "tokens": 5120}, {"from": 256, "to": 512, "loss": None, "tokens": 0}]
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": 81920, "by_position": buckets}


def train(directory, first, last, total=10, **options):
    """Steps first + 1 to last, an evaluation after every third."""
    with RunLog(directory, total, first, QUIET, **options) as log:
        for step in range(first + 1, last + 1):
            log.step(record(step))
            if step % 3 == 0:
                log.validation(step, result())
    return directory / "metrics.jsonl"


# metrics.jsonl


def test_a_line_is_in_the_file_as_soon_as_it_is_logged(tmp_path):
    with RunLog(tmp_path / "runs" / "a", 10, 0, QUIET) as log:
        for step in range(1, 4):
            log.step(record(step))
            lines = (tmp_path / "runs" / "a" / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line) for line in lines] == [record(s) for s in range(1, step + 1)]


def test_nothing_is_lost_by_a_kill(tmp_path):
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
from rich.console import Console
from splice.train.log import RunLog
with RunLog(Path({str(tmp_path)!r}), 10, 0, Console()) as log:
    for step in range(1, 4):
        log.step({record(1)!r} | {{"step": step}})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -9
    assert read_metrics(tmp_path).step.tolist() == [1, 2, 3]


@pytest.mark.parametrize("torn", [b"", b'{"step": 9, "tok', b"\x00\x00\xff"])
def test_a_resumed_run_has_the_file_of_one_never_stopped(tmp_path, torn):
    whole = train(tmp_path / "whole", 0, 10).read_bytes()
    path = train(tmp_path / "stopped", 0, 8)
    with path.open("ab") as file:
        file.write(torn)
    train(tmp_path / "stopped", 6, 10)
    assert path.read_bytes() == whole
    assert [p.name for p in path.parent.iterdir()] == ["metrics.jsonl"]


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path):
    path = train(tmp_path, 0, 2)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    train(tmp_path, 2, 3)
    assert read_metrics(tmp_path).step.tolist() == [1, 2, 3]


def test_a_run_from_the_start_begins_an_empty_file(tmp_path):
    for steps in (5, 1):
        with RunLog(tmp_path, 10, 0, QUIET) as log:
            log.validation(0, result())
            for step in range(1, steps + 1):
                log.step(record(step))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 0, "validation": result()}, record(1)]


def test_a_corrupt_line_is_not_cut_off_in_silence(tmp_path):
    path = train(tmp_path, 0, 4)
    path.write_bytes(path.read_bytes().replace(b'{"step": 2,', b'{"step": 2'))
    before = path.read_bytes()
    with pytest.raises(SpliceError, match=r"metrics\.jsonl:2: not a line"), RunLog(tmp_path, 10, 4, QUIET):
        pass
    assert path.read_bytes() == before


def test_numbers_that_json_lacks_are_null(tmp_path):
    with RunLog(tmp_path, 10, 0, QUIET) as log:
        log.step(record(1, loss=math.nan, grad_norm=math.inf))
        log.validation(1, result() | {"loss": 800.0, "perplexity": math.inf})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    found = read_metrics(tmp_path)
    assert np.isnan(found.loss[0])
    assert np.isnan(found.grad_norm[0])
    assert math.isnan(found.validations[0].perplexity)


def test_other_ranks_say_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunLog.silent() as log:
        log.step(record(1))
        log.validation(1, result())
        log.say("saved")
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


# reading it


def test_metrics_are_read_as_written(tmp_path):
    train(tmp_path, 0, 7)
    found = read_metrics(tmp_path)
    assert found.step.tolist() == list(range(1, 8))
    assert found.tokens.dtype == np.int64
    np.testing.assert_array_equal(found.loss, [8.0 - step / 10 for step in range(1, 8)])
    assert np.isnan(found.mfu).all()
    assert [v.step for v in found.validations] == [3, 6]
    assert found.validations[0].perplexity == math.exp(6.0)
    assert [(b.start, b.end, b.tokens) for b in found.validations[0].by_position] == [(0, 256, 5120), (256, 512, 0)]
    assert math.isnan(found.validations[0].by_position[1].loss)
    assert (found.tokens_at(0), found.tokens_at(3)) == (0, 3 * 4096)


def test_of_two_evaluations_of_a_step_the_later_stands(tmp_path):
    train(tmp_path, 0, 3)
    with RunLog(tmp_path, 10, 3, QUIET) as log:
        log.validation(3, result(loss=5.0))
    assert [v.loss for v in read_metrics(tmp_path).validations] == [5.0]


@pytest.mark.parametrize("torn", [b'{"step": 6', b'{"step"', b"\x00\x00", b"12", b"{}"])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    path = train(tmp_path, 0, 5)
    path.write_bytes(path.read_bytes() + torn)
    assert read_metrics(tmp_path).step.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "line",
    [b'{"step": 2, "tok', b"12", b"", b"\xff", b'{"step": 2}', b'{"tokens": 4}', b'{"step": 2, "validation": {}}'],
)
def test_a_corrupt_line_is_named(tmp_path, line):
    path = train(tmp_path, 0, 5)
    lines = path.read_bytes().split(b"\n")
    lines[1] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(SpliceError, match=r"metrics\.jsonl:2: .*delete the line"):
        read_metrics(tmp_path)
    path.write_bytes(b"\n".join([lines[0], line, b""]))
    with pytest.raises(SpliceError, match=r"metrics\.jsonl:2: "):
        read_metrics(tmp_path)  # the last, but not torn


def test_what_is_no_run_is_said(tmp_path):
    with pytest.raises(SpliceError, match=r"no metrics\.jsonl there"):
        read_metrics(tmp_path)
    with RunLog(tmp_path, 10, 0, QUIET) as log:
        log.validation(0, result())
    with pytest.raises(SpliceError, match="no finished step yet"):
        read_metrics(tmp_path)


# the screen


def lines_of(total, seconds_a_step, first=0):
    """What LineScreen prints of a run whose steps each take so long."""
    now = [0.0]
    console = Console(file=io.StringIO(), width=400)
    screen = LineScreen(console, total, first, clock=lambda: now[0])
    for step in range(first + 1, total + 1):
        now[0] += seconds_a_step
        screen.step(record(step, loss=4.0))
    return console.file.getvalue().splitlines()


def steps_in(lines):
    return [int(line.split()[1].split("/")[0].replace(",", "")) for line in lines]


def test_a_fast_run_has_a_line_every_twentieth():
    steps = steps_in(lines_of(10_000, 0.001))
    assert steps[:3] == [1, 2, 3]
    assert steps[-1] == 10_000
    assert len(steps) in range(22, 26)
    assert set(np.diff(steps[2:-1])) == {500}


def test_a_run_of_an_hour_has_a_line_every_half_minute():
    steps = steps_in(lines_of(3600, 1.0))
    assert set(np.diff(steps[2:-1])) == {30}


def test_slow_steps_do_not_have_a_line_each():
    assert len(lines_of(5000, 40.0)) < 510


def test_a_resumed_run_begins_with_lines():
    assert steps_in(lines_of(10_000, 0.001, first=7000))[:4] == [7001, 7002, 7003, 7503]


def test_a_line_says_what_there_is():
    lines = lines_of(100, 61.0)
    assert lines[0] == "step 1/100: loss 4.000 (smoothed 4.000), lr 3.00e-04, 3,100 tokens/s, 1.2 GiB"
    assert lines[1].endswith("1.2 GiB, 1h 39m left"), "98 steps of 61 s"
    console = Console(file=io.StringIO(), width=400)
    screen = LineScreen(console, 9, 0)
    screen.step(record(1, mfu=0.4125, loss=math.nan, memory_gib=None))
    screen.validation(1, result())
    assert console.file.getvalue().splitlines() == [
        "step 1/9: loss nan (smoothed nan), lr 3.00e-04, 3,100 tokens/s, MFU 41.2%",
        "validation at step 1: loss 6.000, perplexity 403.43",
    ]


def test_a_terminal_has_a_bar_with_the_figures_and_sentences_above_it(tmp_path):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None, legacy_windows=False)
    with RunLog(tmp_path, 3, 0, console) as log:
        for step in range(1, 4):
            log.step(record(step, mfu=0.41))
        log.validation(3, result())
        log.say("saved [x] at step 3")
    bar = console.file.getvalue().split("saved [x] at step 3")[-1]
    for text in ("step 3/3", "100%", "loss 7.700", "MFU 41.0%", "validation 6.000 at 3"):
        assert text in bar
    assert "validation at step 3: loss 6.000" in console.file.getvalue()


def test_the_smoothed_loss_begins_at_the_first_and_forgets():
    mean = RunningMean()
    assert math.isnan(mean.value)
    mean.add(10.0)
    assert mean.value == pytest.approx(10.0)
    mean.add(4.0)
    assert 4.0 < mean.value < 10.0
    for value in (math.nan, math.inf):
        before = mean.value
        mean.add(value)
        assert mean.value == before
    for _ in range(200):
        mean.add(4.0)
    assert mean.value == pytest.approx(4.0, abs=1e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0s"), (59.6, "1m 00s"), (750, "12m 30s"), (3600, "1h 00m"), (11_105, "3h 05m"), (183_600, "2d 03h")],
)
def test_durations_are_in_two_units(seconds, text):
    assert duration(seconds) == text


# tensorboard and wandb, as they are called; neither is installed


@pytest.mark.parametrize(
    ("package", "options"), [("tensorboard", {"tensorboard": True}), ("wandb", {"wandb": "project"})]
)
def test_what_is_not_installed_is_said_before_anything_is_done(tmp_path, monkeypatch, package, options):
    monkeypatch.setattr("splice.train.log.trackers.find_spec", lambda name: None)
    with pytest.raises(SpliceError, match=f"pip install {package}"):
        RunLog(tmp_path / "run", 10, 0, QUIET, **options)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def installed(monkeypatch):
    """Stand-ins for both packages: the calls made of them."""
    monkeypatch.setattr("splice.train.log.trackers.find_spec", lambda name: name)
    calls = SimpleNamespace(inits=[], logged=[], ends=[], writers=[], scalars=[], kept=0)

    def init(**options):
        if calls.kept is None:
            raise ValueError("the API key 0123456789 is wrong")
        calls.inits.append(options)
        return SimpleNamespace(
            step=calls.kept,
            log=lambda scalars, step: calls.logged.append((step, scalars)),
            finish=lambda exit_code: calls.ends.append(exit_code),
        )

    class Writer:
        def __init__(self, directory, purge_step):
            calls.writers.append((directory, purge_step))

        def add_scalar(self, name, value, step):
            calls.scalars.append((name, value, step))

        def flush(self):
            pass

        def close(self):
            pass

    wandb = ModuleType("wandb")
    wandb.init, wandb.Settings = init, lambda **options: options
    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    return calls


def test_wandb_goes_on_with_the_same_run(tmp_path, installed):
    train(tmp_path, 0, 8, wandb="p", settings={"lr": 1})
    installed.kept = 9  # what wandb says it has
    train(tmp_path, 6, 10, wandb="p", settings={"lr": 1})
    first, second = installed.inits
    assert first["id"] == second["id"]
    assert (first["project"], first["config"], first["resume"]) == ("p", {"lr": 1}, "allow")
    assert [step for step, scalars in installed.logged if "train/loss" in scalars] == list(range(1, 11))
    assert installed.ends == [0, 0]
    train(tmp_path, 0, 1, wandb="p")
    assert installed.inits[2]["id"] != first["id"]


def test_wandb_hears_of_a_failed_run(tmp_path, installed):
    with pytest.raises(ZeroDivisionError), RunLog(tmp_path, 10, 0, QUIET, wandb="p"):
        _ = 1 / 0
    assert installed.ends == [1]


def test_a_refusal_by_wandb_quotes_no_key_and_cuts_nothing(tmp_path, installed):
    path = train(tmp_path, 0, 8)
    installed.kept = None
    with pytest.raises(SpliceError, match="wandb login") as caught:
        train(tmp_path, 0, 10, wandb="p")
    assert "0123456789" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert len(path.read_bytes().splitlines()) == 10


def test_tensorboard_hides_what_a_resumed_run_does_again(tmp_path, installed):
    train(tmp_path, 0, 8, tensorboard=True)
    train(tmp_path, 6, 10, tensorboard=True)
    assert installed.writers == [(str(tmp_path / "tensorboard"), 0), (str(tmp_path / "tensorboard"), 7)]
    assert ("train/loss", 7.9, 1) in installed.scalars
    assert ("validation_loss_by_position/0-256", 6.5, 3) in installed.scalars
    assert {type(value) for _, value, _ in installed.scalars} <= {int, float}


def test_the_log_and_the_plots_are_loaded_without_torch():
    code = "import sys, splice.train.log, splice.train.plot; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
