"""The log of expert layers: written, cut and read as that of steps, and said only where there is something to say."""

from __future__ import annotations

import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from splice.errors import SpliceError
from splice.train.log import RunLog, read_experts
from splice.train.log.screen import LineScreen
from splice.train.log.trackers import TensorBoard, WeightsAndBiases

QUIET = Console(file=io.StringIO(), width=200)


def layer(*load, **other):
    return {
        "load": [float(tokens) for tokens in load], "dropped": 0.25, "entropy": 1.5, "dead": load.count(0), "balance": 1.1,
        "z": 0.5,
    } | other  # fmt: skip


def layers_at(step):
    return {0: layer(step, 3, 0), 2: layer(5, 6, 7 + step, dropped=step / 100)}


def train(directory, first, last, every=2):
    """Steps first + 1 to last, a line of experts every second."""
    with RunLog(directory, 10, first, QUIET, experts=True) as log:
        for step in range(first + 1, last + 1):
            if step % every == 0:
                log.experts(step, layers_at(step))
    return directory / "experts.jsonl"


# experts.jsonl


def test_a_line_is_in_the_file_as_soon_as_it_is_logged(tmp_path):
    with RunLog(tmp_path, 10, 0, QUIET, experts=True) as log:
        log.experts(2, layers_at(2))
        (line,) = (tmp_path / "experts.jsonl").read_text().splitlines()
        assert json.loads(line) == {"step": 2, "layers": {str(k): v for k, v in layers_at(2).items()}}


@pytest.mark.parametrize("torn", [b"", b'{"step": 10, "lay', b"\x00\x00\xff"])
def test_a_resumed_run_has_the_file_of_one_never_stopped(tmp_path, torn):
    whole = train(tmp_path / "whole", 0, 10).read_bytes()
    path = train(tmp_path / "stopped", 0, 8)
    with path.open("ab") as file:
        file.write(torn)
    train(tmp_path / "stopped", 5, 10)
    assert path.read_bytes() == whole


def test_a_dense_model_has_no_such_file(tmp_path):
    with RunLog(tmp_path, 10, 0, QUIET):
        pass
    assert not (tmp_path / "experts.jsonl").exists()
    assert read_experts(tmp_path) is None


@pytest.mark.parametrize("experts", [True, False])
def test_a_run_from_the_start_has_no_lines_of_an_earlier_attempt(tmp_path, experts):
    train(tmp_path, 0, 8)
    with RunLog(tmp_path, 10, 0, QUIET, experts=experts):
        pass
    assert read_experts(tmp_path) is None


def test_numbers_that_json_lacks_are_null(tmp_path):
    with RunLog(tmp_path, 10, 0, QUIET, experts=True) as log:
        log.experts(1, {0: layer(math.inf, 2, entropy=math.nan)})
    assert json.loads((tmp_path / "experts.jsonl").read_text())["layers"]["0"]["load"] == [None, 2.0]
    found = read_experts(tmp_path)
    np.testing.assert_array_equal(found.load, [[[math.nan, 2.0]]])
    assert np.isnan(found.entropy).all()


def test_other_ranks_say_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunLog.silent() as log:
        log.experts(1, layers_at(1))
    assert not list(tmp_path.iterdir())


# reading it


def test_loads_are_read_as_written(tmp_path):
    train(tmp_path, 0, 6)
    found = read_experts(tmp_path)
    assert found.step.tolist() == [2, 4, 6]
    assert found.layers == (0, 2)
    np.testing.assert_array_equal(found.load, [[[s, 3, 0], [5, 6, 7 + s]] for s in (2, 4, 6)])
    np.testing.assert_array_equal(found.dropped, [[0.25, s / 100] for s in (2, 4, 6)])
    np.testing.assert_array_equal(found.entropy, np.full((3, 2), 1.5))
    np.testing.assert_array_equal(found.dead, [[1, 0]] * 3)
    assert [getattr(found, name).dtype for name in ("step", "load", "dead")] == [np.int64, np.float64, np.int64]


def test_layers_are_in_the_order_of_their_numbers(tmp_path):
    with RunLog(tmp_path, 10, 0, QUIET, experts=True) as log:
        log.experts(1, {10: layer(10, 1), 9: layer(9, 1)})
    found = read_experts(tmp_path)
    assert found.layers == (9, 10)
    assert found.load[0, :, 0].tolist() == [9, 10]


def test_a_torn_last_line_is_left_out(tmp_path):
    path = train(tmp_path, 0, 4)
    path.write_bytes(path.read_bytes() + b'{"step": 6, "layers": {"0"')
    assert read_experts(tmp_path).step.tolist() == [2, 4]


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 4, "lay', b"12", b"", b'{"step": 4}', b'{"step": 4, "layers": {}}', b'{"step": 4, "layers": {"x": {}}}',
        b'{"step": 4, "layers": [1]}', b'{"step": 4, "layers": {"0": {"load": [], "dropped": 0, "entropy": 0, "dead": 0}}}',
        b'{"step": 4, "layers": {"0": {"load": [1, "x"], "dropped": 0, "entropy": 0, "dead": 0}}}',
        b'{"step": 4, "layers": {"0": {"load": [1]}, "2": {"load": [1, 2]}}}',
    ],
)  # fmt: skip
def test_a_corrupt_line_is_named(tmp_path, line):
    path = train(tmp_path, 0, 6)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([line, *lines[1:]]))
    with pytest.raises(SpliceError, match=r"experts\.jsonl:1: .*delete the line"):
        read_experts(tmp_path)
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(SpliceError, match=r"experts\.jsonl:2: .*delete the line"):
        read_experts(tmp_path)


@pytest.mark.parametrize(
    "other", [{0: layer(1, 2, 3)}, {0: layer(1, 2, 3), 3: layer(1, 2, 3)}, {0: layer(1), 2: layer(1)}]
)
def test_lines_of_another_model_are_named(tmp_path, other):
    train(tmp_path, 0, 4)
    with RunLog(tmp_path, 10, 4, QUIET, experts=True) as log:
        log.experts(6, other)
    with pytest.raises(
        SpliceError, match=r"experts\.jsonl:3: .* 3 experts in layers 0, 2 before; delete the lines of one"
    ):
        read_experts(tmp_path)


# the screen and the trackers


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, ""),
        ({"dead_experts": 0, "dropped": 0.0, "router_entropy": 1.0}, ""),
        ({"dead_experts": 3, "dropped": 0.0}, ", dead 3"),
        ({"dead_experts": 0, "dropped": 0.0123}, ", dropped 1.2%"),
        ({"dead_experts": 12, "dropped": math.nan}, ", dead 12"),
    ],
)
def test_a_screen_tells_of_dead_experts_and_dropped_tokens(figures, said):
    console = Console(file=io.StringIO(), width=400)
    step = {"step": 1, "loss": 4.0, "lr": 1e-3, "tokens_per_second": 3100.0}
    LineScreen(console, 100, 0).step(step | figures)
    assert console.file.getvalue() == f"step 1/100: loss 4.000 (smoothed 4.000), lr 1.00e-03, 3,100 tokens/s{said}\n"


def test_trackers_have_the_extremes_of_each_layer(tmp_path, monkeypatch):
    monkeypatch.setattr("splice.train.log.trackers.find_spec", lambda name: name)
    board, wandb, found, logged = TensorBoard(tmp_path, 0), WeightsAndBiases(tmp_path, "p", 0, {}), {}, []
    board._writer = SimpleNamespace(add_scalar=lambda name, value, step: found.update({name: (value, step)}))
    wandb._run, wandb._from = SimpleNamespace(log=lambda scalars, step: logged.append((step, scalars))), 0
    told = {1: layer(0, 30, 60), 7: layer(0, 0)}
    for tracker in (board, wandb):
        tracker.experts(20, told)
    expected = {
        "expert_dropped/layer_1": 0.25, "expert_entropy/layer_1": 1.5, "expert_dead/layer_1": 1, "expert_heaviest/layer_1": 2,
        "expert_lightest/layer_1": 0, "expert_dropped/layer_7": 0.25, "expert_entropy/layer_7": 1.5,
        "expert_dead/layer_7": 2,
    }  # fmt: skip
    assert found == {name: (value, 20) for name, value in expected.items()}
    assert logged == [(20, expected)]
