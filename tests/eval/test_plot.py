"""Pictures of results: what is drawn is what was measured, of one model and of many, and what is not drawn is said."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.image import imread
from rich.console import Console

from splice.errors import SpliceError
from splice.eval.plot import (
    KINDS,
    TIES,
    delta_chart,
    heat_cells,
    heat_map,
    histogram,
    length_chart,
    perplexity_chart,
    plot_results,
    position_chart,
    read_runs,
    running_mean,
    show_plot,
)
from splice.eval.statistics import bootstrap
from splice.eval.summary import summarise
from splice.pictures import COLORS, bucket_edges, drawing

UNITS = {"kv": "dictionaries", "nq": "questions", "perplexity": "documents", "qasper": "papers"}


def write_run(directory, name, task, samples, metrics, change=None, **facts):
    """A finished run; change: done to its facts before they are written."""
    path = directory / name
    path.mkdir(parents=True)
    (path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    unit, clusters = UNITS.get(task, "sets"), len({sample["cluster"] for sample in samples})
    whole = {"task": task, "name": name, "model": {"name": directory.name}, "settings": {}, "data": [], "subset": None}
    whole |= {"seed": 0, "scorer": "greedy exact match", "unit": unit, "groups": clusters, "clusters": clusters}
    whole |= {"queries": len(samples), "skipped": None} | summarise(samples, metrics, 0, unit) | facts
    if change:
        change(whole)
    (path / "result.json").write_text(json.dumps(whole))
    return directory


def sample(cluster, item, scores, tags=None, **more):
    return {
        "id": f"{cluster}-{item}", "group": cluster, "cluster": cluster, "item": str(item), "tags": tags or {},
        "prefix": "0" * 16, "prefix_tokens": 9, "suffix": " q", "answers": [" a"], "prediction": "", "scores": scores,
    } | more  # fmt: skip


def kv(directory, pairs=75, mode="litm", positions=None, dictionaries=12, seed=0, **options):
    """Key-value retrieval, worst in the middle."""
    rng = np.random.default_rng([seed, pairs])
    if positions is None:
        positions = range(pairs) if mode == "dense" else [k * (pairs - 1) // 4 for k in range(5)]
    samples = [
        sample(f"d{d}", p, {"match": float(rng.random() < 0.3 + 2 * (p / (pairs - 1) - 0.5) ** 2)}, {"position": p})
        for d in range(dictionaries)
        for p in positions
    ]
    return write_run(directory, f"kv-{mode}-{pairs}", "kv", samples, ("match",), **options)


def trec(directory, context=16384, accuracy=0.6, sets=6, queries=20, seed=0, name=None, **options):
    rng = np.random.default_rng([seed, context])
    samples = [
        sample(f"set-{s}", q, {"match": float(rng.random() < accuracy)}) for s in range(sets) for q in range(queries)
    ]
    return write_run(directory, name or f"trec-coarse-{context}", "trec", samples, ("match",), **options)


def perplexity(directory, context=4096, nats=2.0, documents=4, **options):
    spans = [(2**i, min(2 ** (i + 1), context)) for i in range((context - 1).bit_length())]
    samples = [
        sample(f"doc-{d}", 0, {}, buckets=[[a, b, (nats + d / 10 + 1 / b) * (b - a), b - a] for a, b in spans])
        for d in range(documents)
    ]
    return write_run(directory, f"perplexity-books-{context}", "perplexity", samples, ("nll",), **options)


def runs_of(*directories, name=None):
    return [run for run in read_runs(directories) if name in (None, run.result.name)]


def rows_of(run, metric="match"):
    """(position, mean, low, high), percent."""
    rows = run.facts["by"]["position"]
    return np.array(
        [(row["value"], *(100 * row[metric][bound] for bound in ("mean", "low", "high"))) for row in rows]
    ).T


def lines_of(axes):
    """The lines, without single marks and caps: x and y of each."""
    return [line.get_xydata().T for line in axes.lines if line.get_linestyle() != "None"]


def band_of(collection):
    """(x, low) and (x, high) of a band, as sets of corners."""
    return {tuple(np.round(corner, 6)) for path in collection.get_paths() for corner in path.vertices}


def said(axes):
    """The words beneath the title."""
    return axes.texts[0].get_text()


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def printed(directories, output):
    console = Console(file=io.StringIO(), width=80)
    show_plot(directories, output, console)
    return console.file.getvalue().splitlines()


def colors_in(path):
    pixels = np.round(255 * imread(path)[..., :3]).astype(int)
    drawn = [np.round(255 * np.array(to_rgb(color))).astype(int) for color in COLORS]
    return {color for color, rgb in zip(COLORS, drawn, strict=True) if (pixels == rgb).all(axis=-1).sum() >= 20}


@pytest.fixture
def small(monkeypatch):
    """Pictures of a pixel a unit, which are sooner made."""
    monkeypatch.setattr("splice.pictures.SCALE", 1)


# which pictures


def test_every_kind_of_picture_and_what_is_not_drawn(tmp_path, small):
    for seed, name in enumerate(("random", "splice")):
        directory = tmp_path / name
        kv(directory, 75, "litm", seed=seed)
        kv(directory, 9, "dense", seed=seed)
        kv(directory, 12, "dense", seed=seed)
        perplexity(directory)
        trec(directory, 16384, seed=seed)
        trec(directory, 32768, seed=seed)
        write_run(directory, "qasper-2shot", "qasper", [sample("p", 0, {"f1": 0.5})], ("f1",))
    out = tmp_path / "figures"
    lines = printed([tmp_path / "random", tmp_path / "splice"], out)
    names = [
        "kv-dense-12_by_position.png", "kv-dense-9_by_position.png", "kv-litm-75_by_position.png", "kv-dense_heat_map.png",
        "perplexity-books-4096_by_position.png", "trec-coarse_by_length.png", "trec-coarse-16384_delta.png",
        "trec-coarse-32768_delta.png",
    ]  # fmt: skip
    assert lines == [
        *(str(out / name) for name in names),
        "kv-litm_heat_map.png is not drawn: it takes two lengths of one model, found: 75 pairs",
        "qasper-2shot is not drawn: it has no figures by position, and its clusters are no demonstration sets",
    ]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    for name in names:
        assert imread(out / name).shape[1] == 760
    assert plot_results([tmp_path / "random"], tmp_path / "one") == [
        tmp_path / "one" / name for name in names if not name.endswith("_delta.png")
    ]


def test_why_a_delta_is_not_drawn(tmp_path, small):
    a, b = tmp_path / "a", tmp_path / "b"
    trec(a, sets=4), trec(b, sets=4, seed=1)
    trec(a, 32768), trec(b, 32768, queries=21)
    trec(a, 8192, name="dbpedia-8192")
    trec(a, 10, name="hotpotqa-10shot"), trec(b, 10, name="hotpotqa-10shot", scorer="label log-likelihood")

    def reasons(*directories):
        lines = printed(directories, tmp_path / "out")
        return dict(line.split(" is not drawn: ") for line in lines if "_delta.png is not" in line)

    found = reasons(a, b)
    assert found["trec-coarse-16384_delta.png"] == "it takes 5 demonstration sets, found: 4"
    assert found["dbpedia-8192_delta.png"] == "only a has this run"
    assert "6 only in B" in found["trec-coarse-32768_delta.png"]
    assert "same scorer" in found["hotpotqa-10shot_delta.png"]
    assert set(reasons(a).values()) == {"it takes two directories, found: 1"}
    assert reasons(a, b, trec(tmp_path / "c"))["trec-coarse-16384_delta.png"] == "it takes two directories, found: 3"


def test_five_sets_are_enough_for_a_delta(tmp_path, small):
    made = plot_results([trec(tmp_path / "a", sets=5), trec(tmp_path / "b", sets=5, seed=1)], tmp_path / "out")
    assert [path.name for path in made] == ["trec-coarse-16384_delta.png"]


def test_families_are_of_one_mode_and_one_unit(tmp_path, small):
    directory = tmp_path / "a"
    kv(directory, 9, "dense"), kv(directory, 75, "litm")
    trec(directory, 16384), trec(directory, 90, name="trec-coarse-90shot"), trec(directory, 5, name="trec-coarse-5shot")
    lines = printed([directory], tmp_path / "out")
    assert "kv-dense_heat_map.png is not drawn: it takes two lengths of one model, found: 9 pairs" in lines
    assert "trec-coarse_by_length.png is not drawn: it takes two lengths, found: 16,384 tokens" in lines
    assert str(tmp_path / "out" / "trec-coarse-shots_by_length.png") in lines


def test_lengths_of_two_models_make_no_heat_map(tmp_path, small):
    lines = printed([kv(tmp_path / "a", 9), kv(tmp_path / "b", 13)], tmp_path / "out")
    assert "kv-litm_heat_map.png is not drawn: it takes two lengths of one model, found: 9, 13 pairs" in lines


def test_models_keep_the_order_and_the_colours_of_their_directories(tmp_path, small):
    a, b = kv(tmp_path / "a"), kv(kv(tmp_path / "b"), 9)
    runs = runs_of(b, a, name="kv-litm-75")
    assert [(run.name, run.color) for run in runs] == [("b", COLORS[0]), ("a", COLORS[1])]
    plot_results([a, b], tmp_path / "out")
    assert colors_in(tmp_path / "out" / "kv-litm-75_by_position.png") == set(COLORS[:2])
    assert colors_in(tmp_path / "out" / "kv-litm-9_by_position.png") == {COLORS[1]}, "the one it has elsewhere"


def test_one_run_can_be_named_and_a_directory_given_twice_is_drawn_once(tmp_path):
    a = kv(kv(tmp_path / "a"), 9)
    assert [run.result.name for run in read_runs([a / "kv-litm-9"])] == ["kv-litm-9"]
    assert len(read_runs([a, tmp_path / "a" / ".." / "a"])) == 2


# accuracy by position


def test_lines_and_bands_are_the_figures_by_position(tmp_path):
    runs = runs_of(kv(tmp_path / "a"), kv(tmp_path / "b", seed=1))
    figure = position_chart(runs)
    (axes,) = figure.axes
    for run, line, band in zip(runs, lines_of(axes), axes.collections, strict=True):
        x, y, low, high = rows_of(run)
        np.testing.assert_allclose(line, [x, y])
        corners = {tuple(np.round(p, 6)) for bound in (low, high) for p in zip(x, bound, strict=True)}
        assert corners <= band_of(band)
        assert (low < high).all()
    assert [line.get_marker() for line in axes.lines] == ["o", "s"]
    assert list(axes.get_xticks()) == [0, 18, 37, 55, 74]
    assert axes.get_ylim() == (-2, 102)
    assert legend_of(figure) == ["a", "b"]
    assert axes.get_title(loc="left") == "Accuracy by position of the gold: kv-litm-75"
    assert said(axes) == "gold: one of 75 pairs; greedy exact match; dictionaries: 12; band: 95% interval"


def test_of_many_positions_the_running_mean_is_drawn_and_each_of_them_faintly(tmp_path):
    runs = runs_of(kv(tmp_path / "a", 120, "dense"))
    (axes,) = position_chart(runs).axes
    x, y, *_ = rows_of(runs[0])
    points = [line for line in axes.lines if line.get_marker() == "."]
    np.testing.assert_allclose(points[0].get_xydata().T, [x, y])
    mean, low, high = running_mean(runs[0])
    np.testing.assert_allclose(lines_of(axes), [[x, mean]])
    assert {(37, round(low[37], 6)), (37, round(high[37], 6))} <= band_of(axes.collections[0])
    words = " ".join(said(axes).split())
    assert "points: each position; line: running mean of 7 positions; band: 95% interval" in words
    assert position_chart(runs_of(kv(tmp_path / "b", 40, "dense"))).axes[0].lines[0].get_marker() == "o", "few enough"


def test_the_running_mean_is_of_its_window_with_that_mean_s_own_interval(tmp_path):
    (run,) = runs_of(kv(tmp_path / "a", 120, "dense", dictionaries=30))
    _, y, *_ = rows_of(run)
    mean, low, high = running_mean(run)
    for place, side in ((0, 0), (119, 0), (1, 1), (2, 2), (60, 3), (116, 3), (117, 2)):
        near = slice(place - side, place + side + 1)
        assert mean[place] == pytest.approx(y[near].mean())
        scores = np.zeros((30, 1))
        for one in run.result.samples:
            if abs(one["tags"]["position"] - place) <= side:
                scores[int(one["cluster"][1:])] += one["scores"]["match"]
        scores = scores[sorted(range(30), key=lambda d: f"d{d}")]  # clusters in the order of their names
        bounds = 100 * bootstrap(scores, np.full((30, 1), 2 * side + 1), 0)[0]
        np.testing.assert_allclose([low[place], high[place]], bounds)
    assert (high - low)[10:110].mean() < 0.7 * np.diff(rows_of(run)[2:], axis=0)[0, 10:110].mean()


def test_of_many_models_only_the_means_are_drawn(tmp_path):
    runs = runs_of(*(kv(tmp_path / f"m{i}", 120, "dense", dictionaries=3) for i in range(5)))
    figure = position_chart(runs)
    (axes,) = figure.axes
    assert len(axes.lines) == 5
    assert "points" not in said(axes)
    assert len({line.get_markevery() for line in axes.lines}) == 5, "marks are apart"
    assert 0.16 not in {band.get_alpha() for band in axes.collections}
    assert [band.get_alpha() for band in position_chart(runs[:4]).axes[0].collections] == [0.16] * 4


def test_one_dictionary_has_no_band_and_that_is_said(tmp_path):
    for directory, mode in ((tmp_path / "a", "litm"), (tmp_path / "b", "dense")):
        (axes,) = position_chart(runs_of(kv(directory, 75, mode, dictionaries=1))).axes
        assert not any(band_of(band) for band in axes.collections)
        assert "too few clusters for an interval" in " ".join(said(axes).split())


def test_a_single_position_has_a_bar(tmp_path):
    runs = runs_of(kv(tmp_path / "a", positions=[37]))
    (axes,) = position_chart(runs).axes
    ((_, y, low, high),) = rows_of(runs[0]).T
    np.testing.assert_allclose(axes.collections[0].get_segments(), [[[37, low], [37, high]]])
    np.testing.assert_allclose(lines_of(axes), [[[37], [y]]])
    assert axes.get_xlim() == (36.5, 37.5)


def test_positions_are_whole_numbers(tmp_path):
    for pairs in (10, 20, 120):
        (axes,) = position_chart(runs_of(kv(tmp_path / str(pairs), pairs, "dense", dictionaries=2))).axes
        assert all(tick == int(tick) for tick in axes.get_xticks())


def test_what_differs_between_models_is_said_in_the_legend(tmp_path):
    a = kv(tmp_path / "a", subset="first 12 of 500")
    b = kv(tmp_path / "b", scorer="greedy generation", dictionaries=13)
    figure = position_chart(runs_of(a, b))
    assert said(figure.axes[0]) == "gold: one of 75 pairs; band: 95% interval"
    assert legend_of(figure) == [
        "a (greedy exact match; dictionaries: 12; a subset: first 12 of 500)",
        "b (greedy generation; dictionaries: 13)",
    ]
    assert "a subset: first 12 of 500" in said(position_chart(runs_of(a)).axes[0])


# perplexity


def test_perplexity_by_bucket_is_drawn_as_steps_with_bands(tmp_path):
    runs = runs_of(perplexity(tmp_path / "a"), perplexity(tmp_path / "b", nats=1.5))
    figure = perplexity_chart(runs)
    (axes,) = figure.axes
    assert len(axes.patches) == 2
    for run, steps, band in zip(runs, axes.patches, axes.collections, strict=True):
        values, edges, _ = steps.get_data()
        buckets = run.facts["buckets"]
        np.testing.assert_allclose(values, [bucket["perplexity"]["mean"] for bucket in buckets])
        assert list(edges) == [2**i for i in range(13)]
        corners = {
            (x, round(bucket["perplexity"][bound], 6))
            for bucket in buckets
            for bound in ("low", "high")
            for x in (bucket["from"], bucket["to"])
        }
        assert corners <= band_of(band)
    assert axes.get_xscale() == "log"
    assert axes.get_xticklabels()[0].get_text() == "4,096", "the whole context is a tick"
    assert legend_of(figure) == ["a", "b"]
    assert axes.get_title(loc="left") == "Perplexity by position: perplexity-books-4096"


def test_perplexities_far_apart_are_on_a_logarithmic_axis(tmp_path):
    a, b = perplexity(tmp_path / "a"), perplexity(tmp_path / "b", nats=4.0)
    assert perplexity_chart(runs_of(a)).axes[0].get_yscale() == "linear"
    assert perplexity_chart(runs_of(a, b)).axes[0].get_yscale() == "log"


@pytest.mark.filterwarnings("error")
def test_what_is_no_number_or_past_all_measure_is_not_drawn(tmp_path, small):
    def change(facts):
        facts["buckets"][3]["perplexity"] |= {"mean": None, "low": None, "high": None}
        facts["buckets"][5]["perplexity"] |= {"high": 1e300}

    directory = perplexity(tmp_path / "a", change=change)
    (axes,) = perplexity_chart(runs_of(directory)).axes
    values, *_ = axes.patches[0].get_data()
    assert list(np.flatnonzero(np.isnan(values))) == [3]
    assert max(y for _, y in band_of(axes.collections[0])) < 100
    assert plot_results([directory], tmp_path / "out")


# depth and length


def test_of_few_positions_each_has_a_cell(tmp_path):
    (run,) = runs_of(kv(tmp_path / "a", 101))
    edges, values = heat_cells(run)
    np.testing.assert_allclose(edges, [0, 12.5, 37.5, 62.5, 87.5, 100])
    np.testing.assert_allclose(values, rows_of(run)[1])


@pytest.mark.filterwarnings("error")
def test_one_position_of_one_has_the_whole_column(tmp_path):
    samples = [sample("q", 0, {"best_subspan_em": 1.0}, {"position": 0})]
    (run,) = runs_of(write_run(tmp_path / "a", "nq-1", "nq", samples, ("best_subspan_em",)))
    edges, values = heat_cells(run)
    assert (list(edges), list(values)) == ([0, 100], [100])


def test_of_many_positions_tenths_have_cells_weighted_by_samples(tmp_path):
    def change(facts):
        facts["by"]["position"][3]["match"]["mean"] = None
        facts["by"]["position"][4]["n"] = 99

    (run,) = runs_of(kv(tmp_path / "a", 41, "dense", change=change))
    edges, values = heat_cells(run)
    np.testing.assert_allclose(edges, np.arange(0, 101, 10))
    rows = run.facts["by"]["position"]
    means = np.array([row["match"]["mean"] or 0.0 for row in rows])
    assert values[0] == pytest.approx(100 * means[:3].mean()), "positions 0 to 3, one of them unknown"
    assert values[1] == pytest.approx(100 * (99 * means[4] + 12 * means[5:8].sum()) / (99 + 36))
    assert values[9] == pytest.approx(100 * means[36:].mean()), "the last position is in the last cell"
    beginning = heat_cells(runs_of(kv(tmp_path / "b", 75, "dense", positions=range(20)))[0])[1]
    assert list(np.isnan(beginning)) == [False] * 3 + [True] * 7


def test_cells_say_their_figures_a_panel_a_model_a_column_a_length(tmp_path):
    directories = [kv(kv(tmp_path / name, 9, seed=seed), 101, seed=seed) for seed, name in enumerate(("a", "b"))]
    figure = heat_map(runs_of(*directories))
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert len(panels) == 2
    for directory, panel in zip(directories, panels, strict=True):
        own = [text for text in panel.texts if text.get_text().isdigit()]
        wanted = set()
        for column, name in enumerate(("kv-litm-9", "kv-litm-101")):
            edges, values = heat_cells(runs_of(directory, name=name)[0])
            wanted |= {
                (column, round(float(middle), 3), f"{value:.0f}")
                for middle, value in zip((edges[1:] + edges[:-1]) / 2, values, strict=True)
            }
            drawn = {mesh.get_coordinates()[0, 0, 0]: mesh.get_array().ravel() for mesh in panel.collections}
            np.testing.assert_allclose(drawn[column - 0.5], values)
        assert {mesh.get_clim() for mesh in panel.collections} == {(0, 100)}, "one colour is one accuracy everywhere"
        assert {(*np.round(text.get_position(), 3), text.get_text()) for text in own} == wanted
        assert {text.get_color() == "white" for text in own if int(text.get_text()) > 68} == {True}
        assert {text.get_color() == "white" for text in own if int(text.get_text()) < 66} == {False}
        assert panel.get_ylim() == (100, 0), "the beginning of the context is above"
        assert [tick.get_text() for tick in panel.get_xticklabels()] == ["9", "101"]
    assert [panel.texts[-1].get_text() for panel in panels] == ["a", "b"]
    assert panels[0].get_xlabel() == "pairs in the context"
    assert [len(panel.get_yticks()) for panel in panels] == [5, 0]


def test_panels_fill_rows_and_the_rest_stays_empty(tmp_path):
    directories = [kv(kv(tmp_path / f"m{i}", 9, dictionaries=2), 13, dictionaries=2) for i in range(5)]
    panels = heat_map(runs_of(*directories)).axes
    assert [panel.get_visible() for panel in panels] == [True] * 5 + [False] * (len(panels) - 5)
    assert len(panels) % 4 == 0, "of two lengths four panels are side by side"


def test_a_heading_is_no_wider_than_its_panel(tmp_path):
    directories = [kv(kv(tmp_path / f"{i}-{'name' * 20}", 9), 13) for i in range(4)]
    figure = heat_map(runs_of(*directories))
    with drawing():
        figure.draw_without_rendering()
    for panel in figure.axes:
        assert panel.texts[-1].get_text().startswith("…")
        assert panel.texts[-1].get_window_extent().width < 1.1 * panel.get_window_extent().width


# length


def test_accuracy_by_length_with_its_bars(tmp_path):
    directories = [trec(trec(tmp_path / name, 16384, seed=i), 32768, 0.7) for i, name in enumerate(("a", "b"))]
    figure = length_chart(runs_of(*directories))
    (axes,) = figure.axes
    for directory, line, bars in zip(directories, lines_of(axes), axes.collections, strict=True):
        figures = [run.facts["metrics"]["match"] for run in runs_of(directory)]
        np.testing.assert_allclose(line[1], [100 * each["mean"] for each in figures])
        np.testing.assert_allclose(line[0], [16384, 32768], rtol=0.05)
        ends = np.array(bars.get_segments())[..., 1]
        np.testing.assert_allclose(ends, [[100 * each["low"], 100 * each["high"]] for each in figures])
        caps = {round(float(y), 6) for cap in axes.lines if cap.get_marker() == "_" for y in cap.get_ydata()}
        assert {round(float(end), 6) for end in ends.ravel()} <= caps
        assert axes.get_ylim()[0] < ends.min() < ends.max() < axes.get_ylim()[1]
    (a, b) = (line[0] for line in lines_of(axes))
    assert (a < b).all(), "bars are beside each other"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["16,384", "32,768"]
    assert axes.get_title(loc="left") == "Accuracy by tokens in the context: trec-coarse"
    assert legend_of(figure) == ["a", "b"]


@pytest.mark.parametrize("accuracy", [0.0, 0.02, 0.98, 1.0])
def test_no_tick_is_below_0_or_above_100_percent(tmp_path, accuracy):
    directory = trec(trec(tmp_path / "a", 16384, accuracy), 32768, accuracy)
    (axes,) = length_chart(runs_of(directory)).axes
    low, high = axes.get_ylim()
    assert -2 <= low < high <= 102
    assert high - low > 10
    assert len(axes.get_yticks()) > 2
    assert all(max(low, 0) <= tick <= min(high, 100) for tick in axes.get_yticks())


def test_lengths_are_in_the_order_of_numbers(tmp_path):
    directory = trec(trec(trec(tmp_path / "a", 4096), 16384), 512)
    ((x, _),) = lines_of(length_chart(runs_of(directory)).axes[0])
    assert list(x) == [512, 4096, 16384]


# deltas


def accuracies(directory, sets):
    (run,) = runs_of(directory)
    scores = [[s["scores"]["match"] for s in run.result.samples if s["cluster"] == f"set-{i}"] for i in range(sets)]
    return 100 * np.mean(scores, axis=1)


def bars_of(axes):
    """Those of sets that differ, and that of those that do not."""
    found = [bar for container in axes.containers for bar in container]
    grey = [bar for bar in found if bar.get_facecolor() == to_rgba(TIES)]
    return [bar for bar in found if bar not in grey], grey


def test_the_histogram_is_of_a_minus_b_by_set(tmp_path):
    a, b = trec(tmp_path / "a", accuracy=0.8, sets=24), trec(tmp_path / "b", accuracy=0.5, sets=24, seed=1)
    delta = accuracies(a, 24) - accuracies(b, 24)
    (axes,) = delta_chart(*runs_of(a, b)).axes
    span, bars, grey = axes.patches[-1], *bars_of(axes)
    delta = np.round(delta, 9)
    for bar in bars:
        low, high = np.round([bar.get_x(), bar.get_x() + bar.get_width()], 9)
        inside = (low < delta) & (delta <= high) if low >= 0 else (low <= delta) & (delta < high)
        assert bar.get_height() == inside.sum() > 0
    assert sum(bar.get_height() for bar in bars + grey) == 24
    mean, zero = (line.get_xdata()[0] for line in axes.lines)
    assert (mean, zero) == (pytest.approx(delta.mean()), 0)
    low, high = span.get_x(), span.get_x() + span.get_width()
    np.testing.assert_allclose([low, high], bootstrap(delta[:, None], np.ones((24, 1)), 0)[0], atol=0.5)
    assert low < mean < high
    words = " ".join(said(axes).split())
    assert words.startswith(f"24 demonstration sets: A is better on {(delta > 0).sum()}, B on {(delta < 0).sum()}")
    assert words.endswith("A: a B: b")
    assert "too narrow" not in words
    (back,) = delta_chart(*runs_of(b, a)).axes
    assert back.lines[0].get_xdata()[0] == pytest.approx(-delta.mean())


def test_sets_without_a_difference_are_of_neither(tmp_path):
    for name, right in (("a", (1, 1, 0, 0, 1)), ("b", (0, 1, 1, 1, 1))):
        samples = [sample(f"set-{s}", 0, {"match": float(one)}) for s, one in enumerate(right)]
        write_run(tmp_path / name, "trec-coarse-512", "trec", samples, ("match",))
    figure = delta_chart(*runs_of(tmp_path / "a", tmp_path / "b"))
    assert said(figure.axes[0]).startswith("5 demonstration sets: A is better on 1, B on 2, alike on 2; ")
    assert "mean: −20.00 points" in legend_of(figure)
    assert "no difference" in legend_of(figure)


def test_few_sets_are_warned_of(tmp_path):
    a, b = trec(tmp_path / "a", sets=19), trec(tmp_path / "b", sets=19, seed=1)
    assert "of fewer than 20 sets the interval is too narrow" in " ".join(
        said(delta_chart(*runs_of(a, b)).axes[0]).split()
    )


def outcomes(tmp_path, pairs):
    """Two models' runs of a query a set, right or wrong in each."""
    for side, name in enumerate("ab"):
        samples = [sample(f"set-{s}", 0, {"match": float(pair[side])}) for s, pair in enumerate(pairs)]
        write_run(tmp_path / name, "trec-coarse-512", "trec", samples, ("match",))
    return runs_of(tmp_path / "a", tmp_path / "b")


def test_sets_without_a_difference_have_a_grey_bar_at_zero(tmp_path):
    figure = delta_chart(*outcomes(tmp_path, [(1, 0)] + [(0, 1)] * 2 + [(1, 1)] * 4))
    bars, (grey,) = bars_of(figure.axes[0])
    assert [(bar.get_x() >= 0, bar.get_height()) for bar in bars] == [(False, 2), (True, 1)]
    assert (grey.get_x() + grey.get_width() / 2, grey.get_height()) == (pytest.approx(0), 4)
    assert "alike: 4" in legend_of(figure)
    assert not bars_of(delta_chart(*outcomes(tmp_path / "no-ties", [(1, 0)] * 3 + [(0, 1)] * 3)).axes[0])[1]


def test_models_that_never_differ_are_drawn(tmp_path):
    figure = delta_chart(*outcomes(tmp_path, [(1, 1), (0, 0)] * 3))
    bars, (grey,) = bars_of(figure.axes[0])
    assert (bars, grey.get_height()) == ([], 6)
    low, high = figure.axes[0].get_xlim()
    assert low == -high
    assert grey.get_width() < (high - low) / 5


def test_bins_are_round_of_one_sign_and_mirrored():
    for seed in range(20):
        delta = np.random.default_rng(seed).normal(seed % 3 - 1, 10.0 ** (seed % 4 - 2), 5 + 7 * seed)
        delta[:2] = np.round(delta[:2])  # ends of bins, or zeros
        width, begin, counts = histogram(delta)
        assert f"{width:.2e}"[:4] in ("1.00", "2.00", "2.50", "5.00")
        np.testing.assert_allclose(begin / width, np.round(begin / width), atol=1e-6)  # so none has both signs
        assert counts.sum() == (delta != 0).sum()
        assert counts[begin >= 0].sum() == (delta > 0).sum()
        assert delta.max() <= begin.max() + width + 1e-6
        assert 1 <= len(begin) <= 22
        back = histogram(-delta)
        np.testing.assert_allclose(back[1], -(begin + width)[::-1], atol=1e-9)
        assert list(back[2]) == list(counts[::-1])
    width, begin, counts = histogram(np.full(6, 2.0))
    assert (width, list(begin), list(counts)) == (0.5, [1.5], [6])
    assert [len(one) for one in histogram(np.zeros(6))[1:]] == [0, 0]


def test_f1_is_not_called_accuracy(tmp_path):
    for seed, name in enumerate("ab"):
        rng = np.random.default_rng(seed)
        samples = [sample(f"set-{s}", q, {"f1": float(rng.random())}) for s in range(6) for q in range(5)]
        write_run(tmp_path / name, "hotpotqa-10shot", "hotpotqa", samples, ("f1",))
    (axes,) = delta_chart(*runs_of(tmp_path / "a", tmp_path / "b")).axes
    assert axes.get_title(loc="left") == "F1 difference, A − B: hotpotqa-10shot"
    assert axes.get_xlabel() == "F1 of A − F1 of B, percentage points"


# odd results, and what is refused


def test_many_models_and_long_names_are_drawn(tmp_path, small):
    names = ["_hidden", "cost $5$ [red]", "日本", "a-run-with-every-setting-" * 6, *"efghi"]
    for seed, name in enumerate(names):
        directory = tmp_path / name
        kv(kv(directory, 9, seed=seed), 13, seed=seed)
        trec(trec(directory, 8192, seed=seed), 16384, seed=seed)
        perplexity(directory, 256, nats=1 + seed)
    directories = [tmp_path / name for name in names]
    made = plot_results(directories, tmp_path / "out")
    assert len(made) == 5
    for path in made:
        assert imread(path).shape[1] == 760
    figure = position_chart(runs_of(*directories, name="kv-litm-9"))
    assert boxes(figure)[1][0].height > 250, "names do not take the chart's place"
    lines = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in figure.axes[0].lines}
    assert len(lines) == len(names)
    shown = legend_of(figure)
    assert shown[:3] == [" _hidden", "cost $5$ [red]", "日本"], "one that begins with _ is left out by matplotlib 3.9"
    assert len(shown) == len(names)


def boxes(figure):
    """Of the drawn figure: its title, the words beneath it, each panel's heading; and the panels."""
    with drawing():
        figure.draw_without_rendering()
    panels = [panel for panel in figure.axes if panel.get_visible()]
    title = next(
        text for text in panels[0].get_children() if getattr(text, "get_text", str)() == panels[0].get_title("left")
    )
    texts = [title, *panels[0].texts[:1], *(panel.texts[-1] for panel in panels if panel.texts[-1] != panel.texts[0])]
    return [text.get_window_extent() for text in texts], [panel.get_window_extent() for panel in panels]


@pytest.mark.parametrize("subset", [None, "of " + "words and words " * 12], ids=["short", "long"])
def test_nothing_lies_over_anything_else(tmp_path, subset):
    directories = [kv(kv(tmp_path / f"m{i}", 9, subset=subset), 13, subset=subset) for i in range(5)]
    for figure in (heat_map(runs_of(*directories)), position_chart(runs_of(directories[0], name="kv-litm-9"))):
        (title, beneath, *headings), panels = boxes(figure)
        assert title.y1 < figure.bbox.height
        assert title.y0 > beneath.y1 - 3
        for box in (*headings[:1], panels[0]):
            assert beneath.y0 > box.y1
        assert beneath.x1 < figure.bbox.width
        assert all(panel.width == pytest.approx(panels[0].width, rel=0.05) for panel in panels)
        assert sum(panel.width for panel in panels[:4]) > 0.8 * figure.bbox.width, (
            "words beneath the title take no room"
        )
        height = 441 if len(panels) > 1 else 613
        assert panels[0].height == pytest.approx(height, abs=4), "nor do their lines: the figure is made taller"
        assert all(tick.label1.get_visible() for panel in figure.axes for tick in panel.xaxis.get_major_ticks())


def test_two_models_of_a_delta_have_a_line_of_their_own(tmp_path):
    figure = delta_chart(*runs_of(trec(tmp_path / "a"), trec(tmp_path / "b", seed=1)))
    assert said(figure.axes[0]).splitlines()[-1] == "A: a   B: b"


def test_a_bucket_from_0_is_as_wide_as_one_that_doubles():
    assert list(bucket_edges([(0, 64), (64, 128)])) == [32, 64, 128]


@pytest.mark.filterwarnings("error")
def test_figures_that_are_null_break_the_line(tmp_path, small):
    def change(facts):
        facts["by"]["position"][2]["match"] |= {"mean": None, "low": None, "high": None}
        facts["metrics"]["match"] |= {"low": None, "high": None}

    directory = kv(kv(tmp_path / "a", change=change), 9)
    ((_, y),) = lines_of(position_chart(runs_of(directory, name="kv-litm-75")).axes[0])
    assert list(np.isnan(y)) == [False, False, True, False, False]
    trec(trec(directory, 8192, sets=1), 16384, sets=1)
    assert len(plot_results([directory], tmp_path / "out")) == 4

    def lost(facts):
        facts["metrics"]["match"] |= {"mean": None, "low": None, "high": None}

    nothing = trec(trec(tmp_path / "b", 8192, change=lost), 16384, change=lost)
    assert length_chart(runs_of(nothing)).axes[0].get_ylim() == (-2, 102)


def test_without_results_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(SpliceError, match="no results to draw; name the --output"):
        plot_results([], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpliceError, match="empty: no finished evaluation"):
        plot_results([kv(tmp_path / "a"), tmp_path / "empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SpliceError, match=r"by_position.png: cannot be written .*name another directory"):
        plot_results([kv(tmp_path / "a")], tmp_path / "file")


def test_metrics_that_are_no_share_are_left_out_and_that_is_said(tmp_path, small):
    nothing = {"metrics": {}, "by": {}, "buckets": [], "warnings": []}
    for seed, directory in enumerate((tmp_path / "a", tmp_path / "b")):
        kv(directory)
        for name, metrics, change in (
            ("harness-wmt16-5", ("bleu,none",), lambda facts: facts.update(unit="documents")),
            ("bleu-512", ("bleu",), None),
            ("bleu-1024", ("bleu",), None),
            ("harness-wikitext", (), lambda facts: facts.update(nothing)),
        ):
            scores = dict.fromkeys(metrics, 30.0 + seed)
            samples = [sample(f"set-{s}", 0, scores, {"position": s}) for s in range(6)]
            write_run(directory, name, "harness", samples, metrics, change)
    lines = printed([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert lines == [
        str(tmp_path / "out" / "kv-litm-75_by_position.png"),
        "kv-litm_heat_map.png is not drawn: it takes two lengths of one model, found: 75 pairs",
        "bleu-1024 is not drawn: its first metric, bleu, is no share of what was asked",
        "bleu-512 is not drawn: its first metric, bleu, is no share of what was asked",
        "harness-wikitext is not drawn: it has no metric that is a mean over samples",
        "harness-wmt16-5 is not drawn: its first metric, bleu,none, is no share of what was asked",
    ]


def test_every_kind_takes_runs_of_any_task(tmp_path):
    directory = write_run(tmp_path / "a", "qasper-2shot-32768", "qasper", [sample("p", 0, {"f1": 0.5})], ("f1",))
    with drawing():
        assert [len(list(kind(read_runs([directory])))) for kind in KINDS] == [0, 0, 0, 0, 0, 1]


def test_drawing_needs_no_torch_and_leaves_matplotlib_as_it_was(tmp_path):
    code = f"""
import sys
from pathlib import Path
import matplotlib
matplotlib.rcParams["lines.linewidth"] = 7
from splice.eval.plot import plot_results
assert plot_results([Path({str(kv(tmp_path / "a"))!r})], Path({str(tmp_path / "out")!r}))
assert matplotlib.rcParams["lines.linewidth"] == 7
assert not {{"torch", "matplotlib.pyplot"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_pictures_of_the_same_results_are_the_same(tmp_path, small):
    directory = kv(tmp_path / "a", 50, "dense", dictionaries=4)
    one, two = (plot_results([directory], tmp_path / name)[0].read_bytes() for name in ("one", "two"))
    assert one == two
    assert math.isclose(imread(tmp_path / "one" / "kv-dense-50_by_position.png").max(), 1.0)
