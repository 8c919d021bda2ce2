"""The report for the terminal: the same figures without pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import shapes
from .content_charts import composition
from .facts import Facts
from .figures import score_text
from .headline import headline_lines, lead
from .relatedness import MEASURES
from .score_charts import by_kind
from .svg import printable
from .traits import alarm_words, near_words, sampled_words, traits

LETTERS = dict(zip("▁▂▃▄▅▆▇█–…’", [*".:-=+*#@", "-", "...", "'"], strict=True))  # for terminals without the signs


def show(facts: Sequence[Facts], console: Console) -> None:
    """Print headline, shape, relatedness beside the control, near-duplicates and what was looked at.

    A terminal that is not of Unicode gets letters for the signs it lacks.
    """
    if console.encoding.startswith("utf"):
        _show(facts, console)
        return
    with console.capture() as capture:
        _show(facts, console)
    text = capture.get().translate(str.maketrans(LETTERS))
    console.file.write(text.encode(console.encoding, "replace").decode(console.encoding))
    console.file.flush()


def _show(facts: Sequence[Facts], console: Console) -> None:
    for f in facts:
        console.print(Text.assemble((printable(f.name), "bold"), f": {lead(f)}"), soft_wrap=True)
    console.print(_headline(facts))
    console.print(_shape(facts))
    if any(f.related for f in facts):
        console.print(_relatedness(facts))
    for f in facts:
        near = near_words(f)
        prefix = f"{printable(f.name)}: " if len(facts) > 1 else ""
        if near.alarm:
            copying = (alarm_words([f]) + " ", "bold yellow")
            remedy = (near.remedy, "bold")
            console.print(Text.assemble(copying, prefix, near.text, " ", remedy, near.effect), soft_wrap=True)
        else:
            console.print(Text(prefix + near.text), soft_wrap=True)
        if f.related and f.related.weak:
            console.print(
                Text(f"{prefix}the random control is weak: {f.related.windows} examples in the sample"), soft_wrap=True
            )
        console.print(Text(f"{prefix}{sampled_words(f)}.", style="dim"), soft_wrap=True)


def _table(facts: Sequence[Facts], title: str) -> Table:
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, show_header=len(facts) > 1, padding=(0, 2, 0, 0)
    )
    table.add_column()
    for f in facts:
        table.add_column(Text(printable(f.name)), justify="right")
    return table


def _headline(facts: Sequence[Facts]) -> Table:
    table = _table(facts, "")
    for line in headline_lines(facts):
        cells = ["–" if row is None else row.text for row in line.cells]
        table.add_row(Text("  " * line.indent + printable(line.label)), *cells)
    for part in ("documents", "separators", "padding"):
        counts = [composition(f) for f in facts]
        table.add_row(
            f"  {part}' own tokens" if part == "documents" else f"  {part}", *(_share(one, part) for one in counts)
        )
    return table


def _share(counts: dict[str, int], part: str) -> str:
    return f"{counts[part] / max(sum(counts.values()), 1):.2%}"


def _shape(facts: Sequence[Facts]) -> Table:
    table = _table(facts, "\nwhat is in the examples: 10%, median, 90%, most; and a histogram")
    for name, values, histogram in (
        ("documents in an example", [f.columns.documents for f in facts], shapes.whole_number_histogram),
        ("tokens of a document, by doublings", [f.documents for f in facts], shapes.log_histogram),
        *((title, values, shapes.score_histogram) for title, values in _scores(facts)),
    ):
        if any(len(v) for v in values):
            bins = histogram(values)
            table.add_row(name, *(_quantiles(v) for v in values))
            table.add_row("", *(Text(shapes.spark(counts), style="cyan", no_wrap=True) for counts in bins.counts))
    for trait in traits(facts):
        table.add_row(trait.label, *trait.cells)
    return table


def _scores(facts: Sequence[Facts]) -> list[tuple[str, list[np.ndarray]]]:
    """The datasets' scores by kind, with a title: those of two kinds have no histogram in common."""
    kinds = by_kind(facts)
    rows = []
    for kind, alike in kinds:
        held = {f.place for f in alike}
        values = [f.scores if f.place in held else np.zeros(0, np.float32) for f in facts]
        rows.append(("score of an edge" + (f", {kind}" if len(kinds) > 1 else ""), values))
    return rows


def _quantiles(values: np.ndarray) -> str:
    if not len(values):
        return "–"
    quantiles = np.quantile(values, (0.1, 0.5, 0.9, 1.0)).tolist()
    return "  ".join(f"{q:,.0f}" if abs(q) >= 100 or q == round(q) else score_text(q) for q in quantiles)


def _relatedness(facts: Sequence[Facts]) -> Table:
    table = Table(
        title="\nhow related an example's documents are, with 95% intervals", title_justify="left", box=None, pad_edge=False,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    table.add_column("")
    for f in facts:
        table.add_column(Text(printable(f.name) if len(facts) > 1 else "dataset"), justify="right")
        table.add_column("random control", justify="right")
    table.add_column("related documents")
    for measure in MEASURES:
        cells = []
        for f in facts:
            if f.related is None:
                cells += ["–", "–"]
                continue
            for e in (f.related.dataset[measure.key], f.related.control[measure.key]):
                cells.append(f"{measure.show(e.mean)} ({measure.show(e.low)} to {measure.show(e.high)})")
        table.add_row(measure.title, *cells, "raise it" if measure.rises else "lower it")
    return table
