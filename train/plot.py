"""Pictures of training runs, side by side: loss, perplexity by position in the context, throughput; and of experts, each run's.

A chart is a function of runs that gives a figure; `CHARTS` names those that are made. They share a look (that of the
report, in the light colours of its page), a name and a colour for each run, and one legend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from splice.pictures import (
    Series,
    Span,
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

from .log import ExpertLoads, Metrics, Validation, read_experts, read_metrics
from .plot_experts import expert_chart

SMOOTH_SHARE = 1 / 40  # of a run's steps on each side of a step, in the bold line
SMOOTH_POINTS = 800  # of the bold line, at most about so many: more than a picture shows
MOST_FIRST, FIRST_RATIO = 4, 5.0  # runs, and times the last perplexity, up to which first validations are drawn too
UNITS = ((1e12, "trillion tokens"), (1e9, "billion tokens"), (1e6, "million tokens"), (1e3, "thousand tokens"))
LOSS, PERPLEXITY, THROUGHPUT = "loss.png", "perplexity_by_position.png", "throughput.png"
EXPERT_LOAD = "expert_load"  # and the run's name, where there are several


@dataclass(frozen=True)
class Run(Series):
    """A run, its metrics and what its experts did, if it has any."""

    metrics: Metrics
    experts: ExpertLoads | None


def show_plot(runs: Sequence[Path], output: Path, console: Console) -> None:
    """Write the pictures to the directory `output`; print a line a run and the paths. Raises SpliceError as plot_runs."""
    found = read_runs(runs)
    made = write_charts(found, output)
    console.print(summary_table(found))
    without = [run.name for run in found if not _has_positions(run)]
    if without:
        say(console, f"no validation by position, so not in {PERPLEXITY}: {', '.join(without)}")
    for path in made:
        say(console, str(path))


def plot_runs(runs: Sequence[Path], output: Path) -> list[Path]:
    """Write the pictures of training runs into the directory `output`; gives their paths.

    loss.png and throughput.png always; perplexity_by_position.png where a run has a validation, of those that have;
    expert_load.png of a run that has experts, expert_load-NAME.png of several. Raises SpliceError where a run has no
    metrics.jsonl, none of a finished step or a corrupt one, a corrupt experts.jsonl, and where `output` cannot be written.
    """
    return write_charts(read_runs(runs), output)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in directories, each once, named by as much of their paths as tells them apart."""
    return [Run(name, i, read_metrics(path), read_experts(path)) for i, (name, path) in enumerate(named(paths))]


def write_charts(runs: Sequence[Run], output: Path) -> list[Path]:
    """Write every chart that these runs have figures for; gives the paths."""
    made = []
    with drawing():
        charts = ((name, chart(runs)) for name, chart in CHARTS.items())
        for name, figure in chain(charts, expert_charts(runs)):
            if figure is not None:
                write_picture(figure, output / name)
                made.append(output / name)
    return made


def loss_chart(runs: Sequence[Run]) -> Any:
    """Training loss by tokens read, validation as marks, and the learning rate beneath."""
    said = _of_lines(runs) + ("; marks: validation" if any(run.metrics.validations for run in runs) else "")
    labels = [run.name + _lost(run) for run in runs]
    figure, (upper, lower) = canvas(470, (4, 1), "Training loss", said)
    size, _ = _unit(runs)
    for run in runs:
        x, evaluated = run.metrics.tokens / size, run.metrics.validations
        _raw_and_smooth(upper, run, x, run.metrics.loss)
        marks(upper, run, [run.metrics.tokens_at(v.step) / size for v in evaluated], [v.loss for v in evaluated])
        lower.plot(x, run.metrics.lr, marker=_lone(run, x), **run.line)
    upper.set(ylabel="loss, nats per token", ylim=_range_of_losses(runs))
    lower.set(ylabel="learning\nrate", ylim=(0, None))
    lower.set_yticks([0.0, max(np.nan_to_num(run.metrics.lr).max() for run in runs)])
    _tokens_axis(lower, runs)
    lower.yaxis.set_major_formatter(lambda value, _: short_power(value))
    legend(figure, runs, labels)
    return figure


def perplexity_chart(runs: Sequence[Run]) -> Any:
    """Perplexity by token position of each run's last validation, bold, and of its first, faint; None without any.

    Firsts are left out where they would hide the lasts: of more than MOST_FIRST runs, or FIRST_RATIO times as high.
    """
    runs = [run for run in runs if _has_positions(run)]
    if not runs:
        return None
    firsts = _comparable_firsts(runs)
    said = "bold: last validation; faint: first" if firsts else "last validation"
    figure, (axes,) = canvas(400, (1,), "Perplexity by position in the context", said)
    for run in firsts:
        values, edges = _steps(run.metrics.validations[0])
        axes.stairs(values, edges, baseline=None, **run.line | {"linewidth": 1.2, "alpha": 0.35})
    for run in runs:
        values, edges = _steps(run.metrics.validations[-1])
        axes.stairs(values, edges, baseline=None, **run.line)
        marks(axes, run, np.sqrt(edges[1:] * edges[:-1]), values)
    axes.set(ylabel="perplexity")
    bucket_axis(axes, [_spans(run.metrics.validations[-1]) for run in runs])
    log_if_wide(axes)
    legend(figure, runs)
    return figure


def throughput_chart(runs: Sequence[Run]) -> Any:
    """Tokens a second by tokens read, and model FLOPs utilisation beneath where a run has it."""
    known = any(np.isfinite(run.metrics.mfu).any() for run in runs)
    figure, axes = canvas(470 if known else 340, (1, 1) if known else (1,), "Throughput", _of_lines(runs))
    size, _ = _unit(runs)
    for run in runs:
        x = run.metrics.tokens / size
        _raw_and_smooth(axes[0], run, x, run.metrics.tokens_per_second)
        if known:
            _raw_and_smooth(axes[1], run, x, 100 * run.metrics.mfu)
    axes[0].yaxis.set_major_formatter("{x:,.6g}")
    for panel, label in zip(axes, ("tokens per second", "MFU, %"), strict=False):
        panel.set(ylabel=label, ylim=(0, None))
    _tokens_axis(axes[-1], runs)
    legend(figure, runs, marked=any(len(run.metrics.step) == 1 for run in runs))
    return figure


CHARTS: dict[str, Callable[[Sequence[Run]], Any]] = {
    LOSS: loss_chart,
    PERPLEXITY: perplexity_chart,
    THROUGHPUT: throughput_chart,
}


def expert_charts(runs: Sequence[Run]) -> Iterator[tuple[str, Any]]:
    """The file's name and the loads of experts of each run that has some."""
    having = [(run, run.experts) for run in runs if run.experts is not None]
    for run, experts in having:
        size, unit = _unit([run])
        edges = np.array([run.metrics.tokens_at(step) for step in (0, *experts.step)]) / size
        several = "-" + run.name.replace("/", "-") if len(having) > 1 else ""
        yield f"{EXPERT_LOAD}{several}.png", expert_chart(run.name, experts, edges, unit)


def summary_table(runs: Sequence[Run]) -> Table:
    """A line a run: steps, tokens, last training loss, last validation, median tokens a second."""
    table = Table("run")
    for name in ("steps", "tokens", "last loss", "validation loss", "perplexity", "median tokens/s"):
        table.add_column(name, justify="right")
    for run in runs:
        m = run.metrics
        last = m.validations[-1] if m.validations else None
        speeds = m.tokens_per_second[np.isfinite(m.tokens_per_second)]
        table.add_row(
            Text(run.name, overflow="fold"),
            f"{m.step[-1]:,}",
            f"{m.tokens[-1]:,}",
            f"{m.loss[-1]:.3f}",
            f"{last.loss:.3f}" if last else "",
            f"{last.perplexity:,.2f}" if last else "",
            f"{np.median(speeds):,.0f}" if len(speeds) else "",
        )
    return table


def smoothed(values: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Places int64 [n] in `values`, all or about SMOOTH_POINTS, and there the trimmed mean of `reach` values on each side.

    Trimmed to the middle half, for one spike or pause is no trend. Near the beginning both sides are cut alike, since
    losses fall steeply there and a lopsided mean would lie below them; near the end only the later side is. Values that
    are not finite are left out, and have nan in their place: the line breaks where the run did.
    """
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), SMOOTH_POINTS)).astype(np.int64))
    found = np.full(len(places), np.nan)
    for n, i in enumerate(places):
        side = min(reach, i)
        near = values[i - side : i + side + 1]
        if np.isfinite(values[i]):
            found[n] = _middle(near[np.isfinite(near)])
    return places, found


def _middle(values: np.ndarray) -> float:
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def short_power(value: float) -> str:
    """A learning rate as short as it can be said: 3e-4, 2.5e-5, 0."""
    if value == 0:
        return "0"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def _of_lines(runs: Sequence[Run]) -> str:
    """What the lines of _raw_and_smooth are."""
    return "faint: each step; bold: trimmed mean of nearby steps" if any(map(_reach, runs)) else "each step"


def _reach(run: Run) -> int:
    return round(SMOOTH_SHARE * len(run.metrics.step))


def _raw_and_smooth(axes: Any, run: Run, x: np.ndarray, y: np.ndarray) -> None:
    if _reach(run):
        axes.plot(x, np.where(np.isfinite(y), y, np.nan), color=run.color, alpha=0.25, linewidth=0.8)
    places, values = smoothed(y, _reach(run))
    axes.plot(x[places], values, marker=_lone(run, x), zorder=3, **run.line)


def _tokens_axis(axes: Any, runs: Sequence[Run]) -> None:
    size, unit = _unit(runs)
    axes.set(xlabel=f"{unit} read", xlim=(0, 1.02 * max(run.metrics.tokens[-1] for run in runs) / size))


def _lost(run: Run) -> str:
    """Words for a loss that is no number from some step to the end."""
    finite = np.flatnonzero(np.isfinite(run.metrics.loss))
    first = finite[-1] + 1 if len(finite) else 0
    return f" (loss not finite from step {run.metrics.step[first]:,})" if first < len(run.metrics.step) else ""


def _lone(run: Run, x: np.ndarray) -> str | None:
    """A mark for a line of one point, which would not be seen."""
    return run.marker if len(x) == 1 else None


def _unit(runs: Sequence[Run]) -> tuple[float, str]:
    most = max(int(run.metrics.tokens[-1]) for run in runs)
    return next(((size, name) for size, name in UNITS if most >= size), (1.0, "tokens"))


def _range_of_losses(runs: Sequence[Run]) -> tuple[float, float]:
    """All losses, but for spikes above both the first and 99 of 100: these would press the rest flat."""
    low, high = [], []
    for run in runs:
        found = run.metrics.loss[np.isfinite(run.metrics.loss)]
        evaluated = [v.loss for v in run.metrics.validations if np.isfinite(v.loss)]
        if len(found):
            low.append(found.min())
            high.append(max(found[0], np.quantile(found, 0.99)))
        low += evaluated
        high += evaluated
    if not low:
        return 0.0, 1.0
    margin = 0.05 * (max(high) - min(low)) or 0.5
    return min(low) - margin, max(high) + margin


def _steps(validation: Validation) -> tuple[np.ndarray, np.ndarray]:
    """Perplexities [n] and the edges [n + 1] of their buckets."""
    buckets = validation.by_position
    with np.errstate(over="ignore"):
        values = np.exp([bucket.loss for bucket in buckets])
    return np.where(np.isfinite(values), values, np.nan), bucket_edges(_spans(validation))


def _spans(validation: Validation) -> list[Span]:
    return [(bucket.start, bucket.end) for bucket in validation.by_position]


def _has_positions(run: Run) -> bool:
    return bool(run.metrics.validations and run.metrics.validations[-1].by_position)


def _comparable_firsts(runs: Sequence[Run]) -> list[Run]:
    """The runs whose first of several validations is drawn beside the last."""
    if len(runs) > MOST_FIRST:
        return []
    most = FIRST_RATIO * max(np.nan_to_num(_steps(run.metrics.validations[-1])[0]).max() for run in runs)
    several = [run for run in runs if len(run.metrics.validations) > 1 and run.metrics.validations[0].by_position]
    return [run for run in several if np.nan_to_num(_steps(run.metrics.validations[0])[0], nan=np.inf).max() <= most]
