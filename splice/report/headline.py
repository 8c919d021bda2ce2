"""What a dataset is in a few lines: two sentences, and the table of its figures beside those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .facts import Facts
from .figures import Row, headline, score_text

RATIOS = ("bm25", "dense")  # the scores of which a multiple says something: one of hybrid is 0 outside its windows


@dataclass(frozen=True)
class Line:
    """A row of the headline table, a cell for each dataset (None: it has no such figure)."""

    label: str
    indent: bool
    cells: list[Row | None]


def lead(f: Facts) -> str:
    """A dataset in two sentences."""
    m = f.manifest
    what = f"{f.examples:,} example{'s' * (f.examples != 1)} of {f.length:,} tokens"
    if f.is_mixture:
        return f"{what}, mixed from {len(m['mixture'])} datasets."
    retriever = m["settings"]["retriever"]
    made = "packed at random" if retriever == "random" else f"packed by {retriever} with k = {m['settings']['k']}"
    step, control = m["scores"]["mean_step"], m["scores"]["mean_control"]
    if not f.ranks or step is None or control is None:
        return f"{what}, {made}."
    ratio = f", a ratio of {step / control:.1f}" if retriever in RATIOS and control > 0 else ""
    return (
        f"{what}, {made}. A document and the one that retrieved it score {score_text(step)} on average; the same "
        f"retrieving documents with random ones {score_text(control)}{ratio}."
    )


def headline_lines(facts: Sequence[Facts]) -> list[Line]:
    """The headline tables side by side: every row that any dataset has, in their order."""
    tables = [headline(f.manifest) for f in facts]
    order: dict[tuple[str, bool], int] = {}
    for table in tables:
        for row in table:
            order.setdefault((row.label, row.indent), len(order))
    found = [{(row.label, row.indent): row for row in table} for table in tables]
    return [Line(label, indent, [rows.get((label, indent)) for rows in found]) for label, indent in order]
