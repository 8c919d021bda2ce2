"""Pictures of training runs: real, of the expected size, with every run in them, of odd runs too."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from rich.console import Console

from splice.errors import SpliceError
from splice.pictures import COLORS
from splice.train.plot import (
    SMOOTH_POINTS,
    _range_of_losses,
    expert_charts,
    loss_chart,
    perplexity_chart,
    plot_runs,
    read_runs,
    short_power,
    show_plot,
    smoothed,
)
from splice.train.plot_experts import by_column, evenly, relative_load


def make_run(directory, steps=60, final=3.0, start=10.0, evaluate=(30, 60), loss=None, mfu=None, tokens=49152):
    """A run whose loss falls from start to final; loss: by step, instead."""
    rng = np.random.default_rng(steps)
    lines = []
    for step in range(1, steps + 1):
        fall = final + (start - final) * math.exp(-6 * step / 60)
        lines.append(
            {
                "step": step, "tokens": step * tokens, "epoch": 0, "loss": loss(step) if loss else fall + rng.normal(0, 0.1),
                "lr": 3e-4 * min(1, step / 10), "grad_norm": 1.0, "tokens_per_second": 3000 + rng.normal(0, 50), "mfu": mfu,
                "memory_gib": 1.2, "seconds": 16.0,
            }
        )  # fmt: skip
        if step in evaluate:
            buckets = [
                {"from": 2**i * (i > 7), "to": 2 ** (i + 1), "loss": fall - (i - 9) / 10, "tokens": 2**i}
                for i in range(7, 13)
            ]
            lines.append(
                {
                    "step": step,
                    "validation": {"loss": fall, "perplexity": math.exp(fall), "tokens": 99, "by_position": buckets},
                }
            )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def colors_in(path):
    """Those of COLORS that are in a picture, by at least twenty pixels."""
    pixels = np.round(255 * imread(path)[..., :3]).astype(int)
    drawn = [np.round(255 * np.array(to_rgb(color))).astype(int) for color in COLORS]
    return {color for color, rgb in zip(COLORS, drawn, strict=True) if (pixels == rgb).all(axis=-1).sum() >= 20}


def names(paths):
    return [path.name for path in paths]


@pytest.fixture
def small(monkeypatch):
    """Pictures of a pixel a unit, which are sooner made."""
    monkeypatch.setattr("splice.pictures.SCALE", 1)


# the pictures


def test_two_runs_make_three_pictures(tmp_path):
    runs = [make_run(tmp_path / "random"), make_run(tmp_path / "splice", final=2.8)]
    made = plot_runs(runs, tmp_path / "out" / "pictures")
    assert names(made) == ["loss.png", "perplexity_by_position.png", "throughput.png"]
    assert sorted((tmp_path / "out" / "pictures").iterdir()) == made
    for path, height in zip(made, (490, 420, 360), strict=True):  # with one row of the legend
        assert imread(path).shape[:2] == (2 * height, 2 * 760)
        assert colors_in(path) == set(COLORS[:2])


def test_runs_without_validation_are_left_out_of_the_second(tmp_path, small):
    without = make_run(tmp_path / "a", evaluate=())
    assert names(plot_runs([without], tmp_path / "one")) == ["loss.png", "throughput.png"]
    made = plot_runs([without, make_run(tmp_path / "b")], tmp_path / "two")
    assert colors_in(made[1]) == {COLORS[1]}, "its colour is the one that it has in the other pictures"
    assert colors_in(made[0]) == set(COLORS[:2])


def test_a_known_utilisation_has_a_panel(tmp_path, small):
    without = plot_runs([make_run(tmp_path / "a")], tmp_path / "one")[-1]
    both = plot_runs([tmp_path / "a", make_run(tmp_path / "b", mfu=0.4, steps=20)], tmp_path / "two")[-1]
    assert imread(both).shape[0] > imread(without).shape[0]


ODD = {
    "one step": [{"steps": 1, "evaluate": ()}],
    "one step, evaluated": [{"steps": 1, "evaluate": (1,), "mfu": 0.3}],
    "no loss is finite": [{"loss": lambda step: math.nan, "evaluate": ()}],
    "loss lost, a spike, many steps": [
        {"loss": lambda step: 3.0 if step < 30 else math.nan},
        {"loss": lambda step: 1e9 if step == 40 else 3.0},
        {"steps": 3000, "tokens": 524_288},
    ],
    "ten runs": [{"final": 3 - i / 10} for i in range(10)],
    "always the same": [{"loss": lambda step: 2.0, "start": 3.0}],
    "perplexities far apart": [{"final": 1.0, "start": 1.0}, {"final": 9.0, "start": 9.0}],
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("runs", ODD.values(), ids=ODD.keys())
def test_odd_runs_are_drawn(tmp_path, small, runs):
    paths = [make_run(tmp_path / f"run{i}", **options) for i, options in enumerate(runs)]
    for path in plot_runs(paths, tmp_path / "out"):
        assert imread(path).shape[1] == 760
        assert colors_in(path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["_hidden", "cost $5$ [red]", "日本", "a-run-with-every-setting-in-its-name-" * 5])
def test_names_are_only_text(tmp_path, small, name):
    console = Console(file=io.StringIO(), width=300)
    show_plot([make_run(tmp_path / name)], tmp_path / "out", console)
    assert name in console.file.getvalue()
    assert colors_in(tmp_path / "out" / "loss.png") == {COLORS[0]}


def test_a_line_of_one_point_can_be_seen(tmp_path):
    for axes in loss_chart(read_runs([make_run(tmp_path / "a", steps=1, evaluate=())])).axes:
        assert [line.get_marker() for line in axes.lines if len(line.get_xdata())] == ["o"]


def test_no_first_validation_hides_the_last(tmp_path):
    near = make_run(tmp_path / "near", final=3.0, start=4.0, evaluate=(1, 60))
    far = make_run(tmp_path / "far", final=3.0, start=11.0, evaluate=(1, 60))
    drawn = {path.name: len(perplexity_chart(read_runs([path])).axes[0].patches) for path in (near, far)}
    assert drawn == {"near": 2, "far": 1}
    many = [make_run(tmp_path / f"{i}", final=3.0, start=4.0, evaluate=(1, 60)) for i in range(6)]
    assert len(perplexity_chart(read_runs(many)).axes[0].patches) == 6


def test_a_validation_whose_losses_are_null_is_no_crash(tmp_path, small):
    path = make_run(tmp_path / "a", evaluate=(60,)) / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for bucket in lines[-1]["validation"]["by_position"]:
        bucket["loss"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(plot_runs([tmp_path / "a"], tmp_path / "out")) == 3


def test_a_spike_does_not_press_the_rest_flat(tmp_path):
    spiked = make_run(tmp_path / "a", steps=200, loss=lambda step: 1e6 if step == 150 else 10 - step / 40, evaluate=())
    low, high = _range_of_losses(read_runs([spiked]))
    assert low < 5.0
    assert 10 - 1 / 40 < high < 11


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    code = f"""
import sys
from pathlib import Path
import matplotlib
matplotlib.rcParams["lines.linewidth"] = 7
from splice.train.plot import plot_runs
plot_runs([Path({str(make_run(tmp_path / "a"))!r})], Path({str(tmp_path / "out")!r}))
assert matplotlib.rcParams["lines.linewidth"] == 7
assert "matplotlib.pyplot" not in sys.modules, "it would choose a backend, and a window"
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# the loads of experts


def add_experts(
    directory, layers=(0, 2), count=8, steps=(20, 40, 60), load=lambda step, layer, expert: 100.0, dropped=0.0
):
    lines = [
        {"step": step, "layers": {
            layer: {"load": [load(step, layer, expert) for expert in range(count)], "dropped": dropped, "entropy": 1.5,
                    "dead": 0, "balance": 1.0, "z": 0.0}
            for layer in layers
        }}
        for step in steps
    ]  # fmt: skip
    (directory / "experts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def maps_of(run):
    """The panels that are heat maps, and their values [E, columns]: doublings of the balanced load."""
    ((_, figure),) = expert_charts(read_runs([run]))
    return [(axes, axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_runs_with_experts_have_a_picture_each(tmp_path, small):
    dense, one = make_run(tmp_path / "dense"), add_experts(make_run(tmp_path / "x" / "moe"))
    assert names(plot_runs([dense], tmp_path / "none"))[2:] == ["throughput.png"]
    assert names(plot_runs([dense, one], tmp_path / "one"))[3:] == ["expert_load.png"]
    other = add_experts(make_run(tmp_path / "y" / "moe"), layers=range(32), count=64)
    made = plot_runs([one, dense, other], tmp_path / "two")
    assert names(made)[3:] == ["expert_load-x-moe.png", "expert_load-y-moe.png"]
    console = Console(file=io.StringIO(), width=300)
    show_plot([one], tmp_path / "shown", console)
    assert console.file.getvalue().endswith(f"{tmp_path / 'shown' / 'expert_load.png'}\n")


def test_a_load_is_drawn_when_and_by_how_much(tmp_path):
    """Lines after 3, 6 and 60 of 60 steps: the middle one is over 5 to 10% of the axis."""
    loads = {3: [1, 1, 1, 1], 6: [0, 2, 2, 4], 60: [10, 20, 10, 0.001]}
    run = add_experts(make_run(tmp_path / "a"), (5,), 4, loads, lambda step, _, expert: float(loads[step][expert]))
    ((axes, drawn),) = maps_of(run)
    np.testing.assert_allclose(axes.get_xlim(), (0, 60 * 49152 / 1e6))
    assert (axes.get_ylim(), axes.images[0].origin) == ((-0.5, 3.5), "lower")
    first, second = drawn.shape[1] // 20, drawn.shape[1] // 10
    expected = np.array([[0, 0, 0, 0], [-3, 0, 0, 1], [0, 1, 0, -2]])  # -3: dead, which is not only little
    for part, doublings in zip(np.split(drawn, [first, second], axis=1), expected, strict=True):
        np.testing.assert_allclose(part[:, 1:-1], np.tile(doublings[:, None], part.shape[1] - 2), atol=1e-3)


@pytest.mark.parametrize("count", [8, 100, 256, 512])
def test_every_expert_has_pixels(tmp_path, count):
    """Dead ones are black: each is seen apart from its neighbours, however many there are."""
    dead = range(1, count, max(3, count // 16))
    run = add_experts(
        make_run(tmp_path / "a"), range(8), count, load=lambda _s, _l, e: 0.0 if e in dead else 9.0, dropped=0.1
    )
    ((_, figure),) = expert_charts(read_runs([run]))
    panels = sum(bool(axes.images) for axes in figure.axes)
    pixels = imread(plot_runs([run], tmp_path / "out")[-1])[..., :3]
    column = (pixels[:, pixels.shape[1] // 2] == 0).all(axis=-1)
    assert np.count_nonzero(np.diff(column.astype(int)) == 1) == panels * len(dead)


def test_a_layer_that_computed_nothing_is_not_drawn_as_dead(tmp_path, small):
    run = add_experts(make_run(tmp_path / "a"), load=lambda step, layer, expert: 0.0 if step == 40 else 1.0)
    pixels = imread(plot_runs([run], tmp_path / "out")[-1])[..., :3]
    middle = pixels[: pixels.shape[0] // 2, pixels.shape[1] // 2]
    assert (np.round(255 * middle).astype(int) == [0xE6, 0xE2, 0xD9]).all(axis=-1).sum() > 50, "the colour of the grid"
    assert not (middle == 0).all(axis=-1).any()


def test_layers_are_few_and_said(tmp_path):
    run = add_experts(make_run(tmp_path / "a"), range(1, 33))
    ((_, figure),) = expert_charts(read_runs([run]))
    assert [axes.get_ylabel() for axes in figure.axes if axes.images] == [
        f"layer {layer}\nexpert" for layer in (1, 7, 13, 20, 26, 32)
    ]
    assert "6 of its 32 expert layers" in figure.axes[0].texts[0].get_text()


def test_dropped_assignments_have_a_panel_where_there_are_any(tmp_path):
    run = make_run(tmp_path / "a")
    for dropped, labels in ((0.0, ["entropy,\nnats"]), (0.1, ["entropy,\nnats", "dropped,\n%"])):
        ((_, figure),) = expert_charts(read_runs([add_experts(run, dropped=dropped)]))
        panels = [axes for axes in figure.axes if axes.lines]
        assert [axes.get_ylabel() for axes in panels] == labels
        np.testing.assert_allclose(panels[-1].lines[0].get_ydata(), 10.0 if dropped else 1.5)


def test_figures_of_one_line_can_be_seen(tmp_path):
    ((_, figure),) = expert_charts(read_runs([add_experts(make_run(tmp_path / "a"), steps=(60,))]))
    lines = [line for axes in figure.axes for line in axes.lines]
    assert [(line.get_marker(), line.get_clip_on()) for line in lines] == [("o", False), ("s", False)]


ODD_EXPERTS = {
    "one line": {"steps": (60,)},
    "one expert": {"count": 1, "layers": (3,)},
    "nothing computed": {"load": lambda step, layer, expert: 0.0 if step == 40 else 1.0},
    "nothing ever computed": {"load": lambda step, layer, expert: 0.0},
    "null": {"load": lambda step, layer, expert: None if expert == 3 else 1.0, "dropped": None},
    "many lines, later than the metrics": {"steps": range(1, 400)},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", ODD_EXPERTS.values(), ids=ODD_EXPERTS.keys())
def test_odd_experts_are_drawn(tmp_path, small, options):
    path = plot_runs([add_experts(make_run(tmp_path / "cost $5$ [red]"), **options)], tmp_path / "out")[-1]
    assert path.name == "expert_load.png"
    assert imread(path).shape[1] == 760


def test_a_corrupt_log_of_experts_is_named_before_anything_is_written(tmp_path):
    run = add_experts(make_run(tmp_path / "a"))
    (run / "experts.jsonl").write_text("{}\n")
    with pytest.raises(SpliceError, match=r"experts\.jsonl:1: "):
        plot_runs([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_relative_load_of_a_balanced_layer_is_one():
    np.testing.assert_array_equal(relative_load(np.array([[3.0, 3.0], [1.0, 3.0]])), [[1, 1], [0.5, 1.5]])
    assert np.isnan(relative_load(np.zeros((1, 2)))).all()


def test_columns_are_means_weighted_by_tokens():
    edges, values = np.array([0.0, 1.0, 4.0, 8.0]), np.array([4.0, 8.0, 1.0])
    np.testing.assert_allclose(by_column(edges, values, 2), [(4 + 3 * 8) / 4, 1.0])
    np.testing.assert_allclose(by_column(edges, values, 8), [4, 8, 8, 8, 1, 1, 1, 1])
    holes = by_column(edges, np.array([np.nan, 8.0, np.nan]), 2)
    np.testing.assert_array_equal(holes, [8.0, np.nan])
    many = np.random.default_rng(0).random((3000, 2, 5))
    np.testing.assert_allclose(by_column(np.arange(3001.0), many, 30), many.reshape(30, 100, 2, 5).mean(1))


@pytest.mark.parametrize(
    ("count", "most", "places"), [(1, 6, [0]), (6, 6, [0, 1, 2, 3, 4, 5]), (7, 3, [0, 3, 6]), (32, 2, [0, 31])]
)
def test_places_are_even_with_both_ends(count, most, places):
    assert evenly(count, most) == places


# the smoothed line


def test_smoothing_leaves_a_straight_fall_as_it_is():
    fall = np.linspace(10.0, 3.0, 200)
    places, values = smoothed(fall, 5)
    np.testing.assert_array_equal(places, np.arange(200))
    np.testing.assert_allclose(values[:195], fall[:195])
    assert values[-1] > fall[-1], "near the end there are only earlier values"


def test_smoothing_lessens_noise_and_ignores_a_spike():
    noise = np.random.default_rng(0).normal(3.0, 1.0, 2000)
    assert smoothed(noise, 50)[1][50:].std() < 0.3
    spiked = np.full(100, 3.0)
    spiked[50] = 1e9
    assert (smoothed(spiked, 5)[1] == 3.0).sum() == 100


def test_smoothing_breaks_where_the_loss_does():
    values = np.full(50, 2.0)
    values[20:30], values[40] = np.nan, np.inf
    _, found = smoothed(values, 4)
    np.testing.assert_array_equal(np.isnan(found), ~np.isfinite(values))
    assert (found[np.isfinite(values)] == 2.0).all()


def test_a_long_line_has_few_places():
    places, found = smoothed(np.arange(1_000_000.0), 100)
    assert len(places) == len(found) == SMOOTH_POINTS
    assert (places[0], places[-1]) == (0, 999_999)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (3e-4, "3e-4"), (2.5e-5, "2.5e-5"), (1.0, "1e0"), (2.98e-10, "2.98e-10")]
)
def test_learning_rates_are_short(value, text):
    assert short_power(value) == text


# what is printed, and what is refused


def test_a_line_a_run_and_the_paths(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    runs = [make_run(tmp_path / "x" / "run"), make_run(tmp_path / "y" / "run", evaluate=())]
    show_plot(runs, tmp_path / "out", console)
    text = console.file.getvalue()
    row = next(line for line in text.splitlines() if "x/run" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:3] == ["x/run", "60", f"{60 * 49152:,}"]
    last = read_runs(runs)[0].metrics
    assert cells[3:] == [
        f"{last.loss[-1]:.3f}",
        f"{last.validations[-1].loss:.3f}",
        f"{last.validations[-1].perplexity:,.2f}",
        f"{np.median(last.tokens_per_second):,.0f}",
    ]
    assert "no validation by position, so not in perplexity_by_position.png: y/run\n" in text
    assert text.endswith(
        "".join(f"{tmp_path / 'out' / name}\n" for name in ("loss.png", "perplexity_by_position.png", "throughput.png"))
    )


def test_a_run_given_twice_is_drawn_once(tmp_path):
    run = make_run(tmp_path / "a")
    assert [r.name for r in read_runs([run, tmp_path / "." / "a"])] == ["a"]


def test_what_is_no_run_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpliceError, match=r"empty: no metrics\.jsonl"):
        plot_runs([make_run(tmp_path / "a"), tmp_path / "empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SpliceError, match=r"cannot be written .*name another directory"):
        plot_runs([make_run(tmp_path / "a")], tmp_path / "file")
