"""Pictures of results, side by side: accuracy by position, by length and by both, perplexity, and the deltas of two models.

A kind of picture is a function of runs that gives file names, and for each a figure or why there is none; `KINDS` names them.
A directory of results is a model: its name, colour, dash and mark are the same in every picture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from splice.errors import SpliceError
from splice.pictures import (
    COLORS,
    LEGEND_ROW,
    LIGHT,
    MOST_TICKS,
    WIDTH,
    Series,
    bucket_axis,
    bucket_edges,
    canvas,
    drawing,
    legend,
    log_if_wide,
    marks,
    named,
    say,
    write_picture,
)
from splice.report.svg import INK, short

from .compare import compare
from .results import Result, read_results
from .statistics import ENOUGH, bootstrap
from .summary import NLL, percent, unit_of

TOKENS = "tokens"
COUNTED = {"kv": "pairs", "nq": "documents"}  # what a length counts, and what the gold is one of; of other tasks tokens
SETS = "sets"  # of demonstrations, as clusters are called
MEASURES = {"f1": "F1", NLL: "perplexity"}  # metrics that are no accuracy
LEAST_SETS = 5  # that deltas are drawn of
MOST_MARKED = 40  # positions up to which each one is marked; of more a running mean is drawn
SMOOTH_SHARE = 1 / 40  # of the positions on each side of one, in the running mean
MARKS = 8  # on the line of a running mean, about
MOST_DEPTHS = 10  # cells of a column of a heat map
MOST_BINS = 20  # of a histogram
DODGE = 0.03  # of a doubling, between the error bars of two models
NAME = 44  # characters of a name, in titles
MOST_FAINT = 4  # models up to which each position is drawn beneath the running mean
LARGEST = 1e12  # perplexity that is drawn
BARS, TIES = (
    "#a9bccb",
    "#8d8a84",
)  # of a histogram: light beneath lines and shade; grey, of the sets without a difference
TIES_WIDTH = 0.3  # of a bin
CELLS = {"cmap": "Blues", "vmin": 0, "vmax": 100, "edgecolors": "white", "linewidth": 1.5}
DARK = 67  # percent, above which a cell's figure is white: as legible there as in ink
POSITION, LENGTH, HEAT, DELTA = "_by_position.png", "_by_length.png", "_heat_map.png", "_delta.png"

Made = Iterator[tuple[str, Any]]  # a file's name; its figure, or in words why there is none


@dataclass(frozen=True)
class Run(Series):
    """A finished run, drawn as all runs of its directory are."""

    result: Result

    @property
    def facts(self) -> dict[str, Any]:
        """Its result.json."""
        return self.result.facts

    @property
    def metric(self) -> str:
        """The first, which is what is drawn; "" of a result of lm-eval's without any."""
        return next(iter(self.facts["metrics"]), "")

    @property
    def is_share(self) -> bool:
        """Whether its figures are drawn as percent."""
        return bool(percent(self.metric))

    @cached_property
    def size(self) -> tuple[str, int, str]:
        """The run's name without its length, the length and its unit: kv-dense, 75, pairs; length 0 of a name without one."""
        found = re.fullmatch(r"(.+)-(\d+)(shot)?", self.result.name)
        if not found:
            return self.result.name, 0, TOKENS
        family, length, shot = found.groups()
        if shot:
            return f"{family}-shots", int(length), "demonstrations"
        return family, int(length), COUNTED.get(self.facts["task"], TOKENS)

    @property
    def family(self) -> str:
        return self.size[0]

    @property
    def length(self) -> int:
        return self.size[1]

    @property
    def unit(self) -> str:
        return self.size[2]

    @property
    def clusters(self) -> str:
        """What its clusters are called."""
        return unit_of(self.facts)

    @cached_property
    def by_position(self) -> np.ndarray:
        """Position, samples, accuracy, low and high in percent: float64 [5, n] in the order of positions; n is 0 without any."""
        rows = self.facts.get("by", {}).get("position", ()) if self.is_share else ()
        found = [(row["value"], row["n"], *_percents(row.get(self.metric, {}))) for row in rows]
        return np.array(sorted(found), np.float64).reshape(-1, 5).T


def show_plot(directories: Sequence[Path], output: Path, console: Console) -> None:
    """Write the pictures to the directory `output`; print their paths, then what is not drawn and why, a line each.

    Raises SpliceError as plot_results.
    """
    made, missing = write_pictures(read_runs(directories), output)
    for line in (*map(str, made), *missing):
        say(console, line)


def plot_results(directories: Sequence[Path], output: Path) -> list[Path]:
    """Write every picture that results in `directories` (the --output of evaluations) give into `output`; gives the paths.

    Raises SpliceError where a directory has no finished run or one that is cut, and where `output` cannot be written.
    """
    return write_pictures(read_runs(directories), output)[0]


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """The runs of each directory, which are named by as much of their paths as tells them apart."""
    if not directories:
        raise SpliceError("no results to draw; name the --output of one `splice eval` or of several")
    return [Run(name, i, result) for i, (name, path) in enumerate(named(directories)) for result in read_results(path)]


def write_pictures(runs: Sequence[Run], output: Path) -> tuple[list[Path], list[str]]:
    """Write the pictures; gives their paths, and in words what is not drawn."""
    made, missing = [], []
    with drawing():
        for kind in KINDS:
            for name, figure in kind(runs):
                if isinstance(figure, str):
                    missing.append(f"{name} is not drawn: {figure}")
                else:
                    write_picture(figure, output / name)
                    made.append(output / name)
    return made, missing


def positions(runs: Sequence[Run]) -> Made:
    """Accuracy by the gold's position, a picture for each run's name."""
    for name, same in _grouped(runs, lambda run: run.result.name).items():
        if found := [run for run in same if run.by_position.size]:
            yield name + POSITION, position_chart(found)


def position_chart(runs: Sequence[Run]) -> Any:
    """A line a model with its 95% band; of many positions their running mean, and each of them as a faint point."""
    reach, faint = max(map(_reach, runs)), len(runs) <= MOST_FAINT
    drawn = [running_mean(run) if _reach(run) else run.by_position[2:] for run in runs]
    gold = f"gold: one of {runs[0].length} {runs[0].unit}" if runs[0].unit != TOKENS else ""
    mean = f"line: running mean of {2 * reach + 1} positions" if reach else ""
    said = _said(gold, _shared(runs), "points: each position" if reach and faint else "", mean, _band_said(drawn))
    figure, (axes,) = canvas(400, (1,), _title(runs[0], "by position of the gold"), said)
    for run, (y, low, high) in zip(runs, drawn, strict=True):
        x, every = run.by_position[0], None
        if _reach(run):
            step = len(x) // MARKS
            every = (run.place % len(COLORS) * step // len(COLORS), step)  # so that marks of models are apart
        if every and faint:
            axes.plot(
                x, run.by_position[2], linestyle="none", marker=".", markersize=4, markeredgewidth=0, color=run.color,
                alpha=0.4,
            )  # fmt: skip
        axes.plot(
            x, y, marker=run.marker, markersize=7, markeredgecolor="white", markeredgewidth=0.7, markevery=every, zorder=3,
            **run.line,
        )  # fmt: skip
        if len(x) > 1:
            axes.fill_between(x, low, high, color=run.color, **_band(len(runs)))
        else:
            _bars(axes, run, x, low, high)
    asked = sorted({int(x) for run in runs for x in run.by_position[0]})
    if len(asked) <= MOST_TICKS:
        axes.set_xticks(asked)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    margin = 0.03 * (asked[-1] - asked[0]) or 0.5
    axes.set(xlabel="position of the gold, from 0", xlim=(asked[0] - margin, asked[-1] + margin))
    _percent_axis(axes, runs[0], -2, 102)
    legend(figure, runs, _labels(runs))
    return figure


def running_mean(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accuracy over each position and _reach others on each side of it, its low and its high, percent, float64 [n].

    Near the ends it is over fewer, on both sides alike: accuracy is steep there. The interval is of the mean that is
    drawn, by the bootstrap at the ends too, so that the band is of one kind.
    """
    samples = [sample for sample in run.result.samples if run.metric in sample["scores"]]
    clusters, row = np.unique([sample["cluster"] for sample in samples], return_inverse=True)
    places, column = np.unique([sample["tags"]["position"] for sample in samples], return_inverse=True)
    scores, counts = np.zeros((2, len(clusters), len(places)))
    np.add.at(scores, (row, column), [sample["scores"][run.metric] for sample in samples])
    np.add.at(counts, (row, column), 1)
    middle = np.arange(len(places))
    side = np.minimum(_reach(run), np.minimum(middle, middle[::-1]))

    def over(values: np.ndarray) -> np.ndarray:
        until = np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))
        return until[:, middle + side + 1] - until[:, middle - side]

    scores, counts = over(scores), over(counts)
    return 100 * scores.sum(0) / counts.sum(0), *100 * bootstrap(scores, counts, run.facts["seed"]).T


def buckets(runs: Sequence[Run]) -> Made:
    """Perplexity by position, a picture for each run's name."""
    for name, same in _grouped(runs, lambda run: run.result.name).items():
        if found := [run for run in same if run.facts.get("buckets")]:
            yield name + POSITION, perplexity_chart(found)


def perplexity_chart(runs: Sequence[Run]) -> Any:
    """A step a bucket with its 95% band, a line a model."""
    spans = [[(bucket["from"], bucket["to"]) for bucket in run.facts["buckets"]] for run in runs]
    drawn = [np.array([_bounds(bucket["perplexity"]) for bucket in run.facts["buckets"]]).T for run in runs]
    figure, (axes,) = canvas(400, (1,), _title(runs[0], "by position"), _said(_shared(runs), _band_said(drawn)))
    drawn = [np.where(values <= LARGEST, values, np.nan) for values in drawn]
    for run, own, (y, low, high) in zip(runs, spans, drawn, strict=True):
        edges = bucket_edges(own)
        axes.stairs(y, edges, baseline=None, **run.line)
        twice = (np.repeat(values, 2) for values in (low, high))
        axes.fill_between(np.repeat(edges, 2)[1:-1], *twice, color=run.color, **_band(len(runs)))
        marks(axes, run, np.sqrt(edges[1:] * edges[:-1]), y)
    axes.set(ylabel="perplexity")
    bucket_axis(axes, spans)
    log_if_wide(axes)
    legend(figure, runs, _labels(runs))
    return figure


def depths(runs: Sequence[Run]) -> Made:
    """Accuracy by depth and length, a picture for each family of runs: kv-dense-75 and kv-dense-300."""
    for family, same in _grouped(runs, lambda run: run.family).items():
        found = [run for run in same if run.by_position.size and run.length]
        if not found:
            continue
        several = [run for run in found if len({other.length for other in found if other.place == run.place}) > 1]
        if several:
            yield family + HEAT, heat_map(several)
        else:
            yield family + HEAT, f"it takes two lengths of one model, found: {_lengths(found)}"


def heat_map(runs: Sequence[Run]) -> Any:
    """A panel a model: a column a length, a cell a depth, with its accuracy as a colour and as a figure."""
    places, lengths = list(dict.fromkeys(run.place for run in runs)), sorted({run.length for run in runs})
    columns = max(1, min(len(places), WIDTH // (70 + 50 * len(lengths))))
    rows = -(-len(places) // columns)
    said = _said(f"cells: {_measure(runs[0])}, %", _shared(runs))
    figure, axes = canvas(
        80 + 250 * rows, (1,) * rows, _title(runs[0], "by depth and length", runs[0].family), said, columns
    )
    for panel in axes[len(places) :]:
        panel.set_visible(False)
    for i, (place, label, panel) in enumerate(zip(places, _labels(runs), axes, strict=False)):
        own = [run for run in runs if run.place == place]
        for run in own:
            _column(panel, lengths.index(run.length), *heat_cells(run))
        panel.annotate(short(label, (WIDTH // columns - 60) // 8), (0, 1), (0, 5), "axes fraction", "offset points")
        panel.grid(False)
        panel.spines[:].set_visible(False)
        panel.set(xlim=(-0.5, len(lengths) - 0.5), ylim=(100, 0))
        panel.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        panel.set_yticks([] if i % columns else [0, 25, 50, 75, 100])
        panel.yaxis.set_major_formatter("{x:g}%")
        if i + columns >= len(places):
            panel.set_xlabel(f"{runs[0].unit} in the context")
        if i % columns == 0:
            panel.set_ylabel("depth of the gold")
    return figure


def heat_cells(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the cells, percent of the context [n + 1], and their accuracies, percent [n].

    More than MOST_DEPTHS positions are put into as many bins; of fewer each has a cell, which ends midway to the next.
    """
    x, n, y, *_ = run.by_position
    last = run.length - 1 if run.unit != TOKENS else x[-1]
    depth = 100 * x / max(last, 1)
    if len(x) <= MOST_DEPTHS:
        return np.array([0, *(depth[1:] + depth[:-1]) / 2, 100]), y
    cell = np.minimum(depth * MOST_DEPTHS // 100, MOST_DEPTHS - 1).astype(np.int64)
    known = np.isfinite(y)
    total, weight = (np.bincount(cell[known], each[known], MOST_DEPTHS) for each in (n * y, n))
    return np.linspace(0, 100, MOST_DEPTHS + 1), total / np.where(weight, weight, np.nan)


def _column(panel: Any, at: int, edges: np.ndarray, values: np.ndarray) -> None:
    panel.pcolormesh([at - 0.5, at + 0.5], edges, values[:, None], **CELLS)
    for middle, value in zip((edges[1:] + edges[:-1]) / 2, values, strict=True):
        if np.isfinite(value):
            color = "white" if value > DARK else LIGHT[INK]
            panel.text(at, middle, f"{value:.0f}", ha="center", va="center", color=color)


def lengths(runs: Sequence[Run]) -> Made:
    """Accuracy by the length of the context that demonstrations fill, a picture for each family: trec-coarse-16384, -32768."""
    for family, same in _grouped(runs, lambda run: run.family).items():
        found = [run for run in same if run.clusters == SETS and run.length and run.is_share]
        if len({run.length for run in found}) > 1:
            yield family + LENGTH, length_chart(found)
        elif found:
            yield family + LENGTH, f"it takes two lengths, found: {_lengths(found)}"


def length_chart(runs: Sequence[Run]) -> Any:
    """A line a model; the bars are 95% intervals, and somewhat apart so that all are seen."""
    models = list({run.place: run for run in runs}.values())
    owned = [sorted((run for run in runs if run.place == model.place), key=lambda run: run.length) for model in models]
    drawn = [np.array([_percents(run.facts["metrics"][run.metric]) for run in own]).T for own in owned]
    said = _said(_shared(runs), _band_said(drawn, "bars"))
    figure, (axes,) = canvas(400, (1,), _title(runs[0], f"by {runs[0].unit} in the context", runs[0].family), said)
    for i, (model, own, (y, low, high)) in enumerate(zip(models, owned, drawn, strict=True)):
        x = np.array([run.length for run in own]) * 2.0 ** (DODGE * (i - (len(models) - 1) / 2))
        axes.plot(x, y, **model.line)
        marks(axes, model, x, y)
        _bars(axes, model, x, low, high)
    ticks = sorted({run.length for run in runs})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel=f"{runs[0].unit} in the context, on a logarithmic scale", xlim=(ticks[0] / 1.3, ticks[-1] * 1.3))
    _percent_axis(axes, runs[0], *_range(drawn))
    legend(figure, models, _labels(runs))
    return figure


def deltas(runs: Sequence[Run]) -> Made:
    """What two models differ by on each demonstration set, a picture for each run's name."""
    given = len({run.place for run in runs})
    for name, same in _grouped(runs, lambda run: run.result.name).items():
        if same[0].clusters != SETS or not same[0].is_share:
            continue
        if given != 2:
            yield name + DELTA, f"it takes two directories, found: {given}"
        elif len(same) != 2:
            yield name + DELTA, f"only {same[0].name} has this run"
        elif (sets := min(run.facts["clusters"] for run in same)) < LEAST_SETS:
            yield name + DELTA, f"it takes {LEAST_SETS} demonstration sets, found: {sets}"
        else:
            try:
                yield name + DELTA, delta_chart(*same)
            except SpliceError as refused:
                yield name + DELTA, str(refused)


def delta_chart(a: Run, b: Run) -> Any:
    """A histogram of A - B over demonstration sets, their mean with its interval, and zero; sets without a difference are grey.

    Raises SpliceError as compare.
    """
    compared = compare(a.result, b.result, a.facts["seed"])
    delta = np.round(100 * np.array(list(compared.deltas[a.metric].values())), 9)  # bins end where many of them are
    mean, low, high = _percents(compared.metrics[a.metric])
    ties = int((delta == 0).sum())
    alike = f", alike on {ties}" if ties else ""
    sets = f"{len(delta)} demonstration sets: A is better on {(delta > 0).sum()}, B on {(delta < 0).sum()}{alike}"
    few = f"of fewer than {ENOUGH} sets the interval is too narrow" if len(delta) < ENOUGH else ""
    names = f"A: {short(a.name, NAME)}   B: {short(b.name, NAME)}"
    said = f"{_said(sets, _scored(a), few, _subset(a))}\n{names}"
    figure, (axes,) = canvas(400, (1,), _title(a, "difference, A − B"), said)
    width, edges, counts = histogram(delta)
    axes.bar(edges, counts, width, align="edge", color=BARS, edgecolor="white", linewidth=1.2)
    if ties:
        axes.bar(0, ties, TIES_WIDTH * width, color=TIES, edgecolor="white", linewidth=1.2, label=f"alike: {ties}")
    interval = f"95% bootstrap: {_signed(low)} to {_signed(high)}"
    axes.axvspan(low, high, color=COLORS[1], alpha=0.22, linewidth=0, label=interval)
    axes.axvline(mean, color=COLORS[1], linewidth=2.2, label=f"mean: {_signed(mean)} points")
    axes.axvline(0, color=LIGHT[INK], linewidth=1.4, linestyle=(0, (4, 3)), label="no difference")
    if ties == len(delta):
        axes.set_xlim(-width, width)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=f"{_measure(a)} of A − {_measure(a)} of B, percentage points", ylabel="demonstration sets")
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW / 72)
    figure.legend(loc="outside lower left", ncols=4, handlelength=2.6, columnspacing=1.6)
    return figure


def histogram(delta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The width of the bins, a round one, where each begins, float64 [n], and how many differences are in it, int64 [n].

    A bin holds one sign, and the end that is further from zero, so that A - B is B - A mirrored; zeros are in none.
    """
    spread = np.ptp(delta) / min(MOST_BINS, max(LEAST_SETS, 2 * round(len(delta) ** 0.5)))
    wanted = spread or abs(delta[0]) / LEAST_SETS or 1.0
    power = 10.0 ** np.floor(np.log10(wanted))
    width = next(round_width * power for round_width in (1, 2, 2.5, 5, 10) if round_width * power >= wanted)
    place = np.sign(delta) * np.ceil(np.round(np.abs(delta) / width, 6))  # 1: from 0 to the width, -1: from there to 0
    first, counts = np.unique(place[place != 0], return_counts=True)
    return width, np.round(width * (first - (first > 0)), 9), counts


def others(runs: Sequence[Run]) -> Made:
    """Runs that no picture is of."""
    for name, (run, *_) in _grouped(runs, lambda run: run.result.name).items():
        if run.facts.get("buckets"):
            continue
        if not run.metric:
            yield name, "it has no metric that is a mean over samples"
        elif not run.is_share:
            yield name, f"its first metric, {run.metric}, is no share of what was asked"
        elif not (run.by_position.size or run.clusters == SETS):
            yield name, "it has no figures by position, and its clusters are no demonstration sets"


KINDS: tuple[Callable[[Sequence[Run]], Made], ...] = (positions, depths, buckets, lengths, deltas, others)


def _grouped(runs: Sequence[Run], by: Callable[[Run], str]) -> dict[str, list[Run]]:
    """Runs by name, in the order in which names are first met."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(by(run), []).append(run)
    return found


def _bounds(figure: Mapping[str, Any]) -> tuple[float, float, float]:
    """Mean, low and high of a figure; nan for what it has not."""
    mean, low, high = (figure.get(name) for name in ("mean", "low", "high"))
    return tuple(np.nan if value is None else float(value) for value in (mean, low, high))


def _percents(figure: Mapping[str, Any]) -> tuple[float, float, float]:
    mean, low, high = _bounds(figure)
    return 100 * mean, 100 * low, 100 * high


def _reach(run: Run) -> int:
    """Positions on each side of one, that its running mean is over; 0 where they are few enough to mark each."""
    n = run.by_position.shape[1]
    return round(SMOOTH_SHARE * n) if n > MOST_MARKED else 0


def _band(models: int) -> dict[str, Any]:
    """How bands are drawn: where many overlap, fainter."""
    return {"alpha": 0.16 if models <= MOST_FAINT else 0.08, "linewidth": 0}


def _bars(axes: Any, run: Run, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    axes.vlines(x, low, high, color=run.color, linewidth=1.8)
    for end in (low, high):
        axes.plot(x, end, linestyle="none", marker="_", markersize=11, markeredgewidth=1.8, color=run.color)


def _range(percents: Sequence[np.ndarray]) -> tuple[float, float]:
    """Of an axis: whole tens around what is drawn, and somewhat more."""
    values = np.concatenate([own.ravel() for own in percents])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return -2, 102
    low = min(10 * np.floor(finite.min() / 10), 90)
    high = max(10 * np.ceil(finite.max() / 10), low + 10)
    pad = (high - low) / 50
    return low - pad, high + pad


def _percent_axis(axes: Any, run: Run, low: float, high: float) -> None:
    axes.set(ylabel=_measure(run), ylim=(low, high))
    axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= tick <= min(high, 100)])
    axes.yaxis.set_major_formatter("{x:g}%")


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")


def _measure(run: Run) -> str:
    """What its first metric is called."""
    return MEASURES.get(run.metric, "accuracy")


def _title(run: Run, by: str, name: str = "") -> str:
    measure = _measure(run)
    return f"{measure[0].upper()}{measure[1:]} {by}: {short(name or run.result.name, NAME)}"


def _said(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _band_said(drawn: Iterable[Sequence[np.ndarray]], what: str = "band") -> str:
    """What bands or bars are, of accuracies with their intervals."""
    has = any(np.isfinite(low).any() for _, low, _ in drawn)
    return f"{what}: 95% interval" if has else "too few clusters for an interval"


def _scored(run: Run) -> str:
    return run.facts["scorer"]


def _subset(run: Run) -> str:
    return f"a subset: {run.facts['subset']}" if run.facts.get("subset") else ""


def _remarks(run: Run) -> list[str]:
    """What has to be known to read its figures."""
    return [_scored(run), f"{run.clusters}: {run.facts['clusters']:,}", _subset(run)]


def _shared(runs: Sequence[Run]) -> str:
    """The remarks that hold for all, for beneath the title."""
    return _said(*(remark for remark in _remarks(runs[0]) if all(remark in _remarks(run) for run in runs)))


def _labels(runs: Sequence[Run]) -> list[str]:
    """Each model's name, and the remarks that do not hold for all."""
    labels = []
    for own in _grouped(runs, lambda run: str(run.place)).values():
        remarks = dict.fromkeys(remark for run in own for remark in _remarks(run))
        differing = _said(*(remark for remark in remarks if not all(remark in _remarks(run) for run in runs)))
        labels.append(f"{own[0].name} ({differing})" if differing else own[0].name)
    return labels


def _lengths(runs: Sequence[Run]) -> str:
    found = sorted({run.length for run in runs})
    return f"{', '.join(f'{length:,}' for length in found)} {runs[0].unit}"
