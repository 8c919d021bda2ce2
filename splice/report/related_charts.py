"""Charts of relatedness: a measure each, dataset beside random control."""

from __future__ import annotations

from collections.abc import Sequence

from . import plots
from .chart import Chart, labels
from .facts import Facts
from .relatedness import MEASURES, Measure


def relatedness_charts(facts: Sequence[Facts]) -> list[Chart]:
    """A chart for each measure, dataset beside control; none where no dataset has a document."""
    if not any(f.related for f in facts):
        return []
    return [_relatedness(measure, facts) for measure in MEASURES]


def _relatedness(measure: Measure, facts: Sequence[Facts]) -> Chart:
    rows, spoken = [], []
    for f in facts:
        if f.related is None:
            continue
        dataset, control = f.related.dataset[measure.key], f.related.control[measure.key]
        show = measure.show
        spoken.append(f"{f.name} {show(dataset.mean)}, its random control {show(control.mean)}")
        rows += [
            [f.name, "dataset", show(dataset.mean), f"{show(dataset.low)} to {show(dataset.high)}"],
            [f.name, "random control", show(control.mean), f"{show(control.low)} to {show(control.high)}"],
        ]
    return Chart(
        f"related-{measure.key}",
        measure.title,
        plots.against_control(f"related-{measure.key}", measure, [f.related for f in facts], labels(facts)),
        measure.meaning,
        "; ".join(spoken),
        ["dataset", "of", "mean", "95% interval"],
        rows,
    )
