"""Charts of one example: its tree and its tokens."""

from __future__ import annotations

import numpy as np

from .chart import MOST_ROWS, Chart
from .example_view import MOST_DOCUMENTS, draw_strip, draw_tree
from .facts import Facts
from .figures import score_text


def example_charts(f: Facts, number: int) -> list[Chart]:
    """The tree and the tokens of one example, the one with the median number of documents."""
    example = f.example
    if example is None or not example.doc_ids:
        return []
    n = len(example.doc_ids)
    roots = int(np.isnan(example.scores).sum())
    which = (
        "a root"
        if n == roots == 1
        else {0: "none of them a root", 1: "one of them a root"}.get(roots, f"{roots:,} of them roots")
    )
    rows = []
    for i, title in enumerate(example.doc_ids[:MOST_ROWS]):
        parent, score = int(example.parents[i]), float(example.scores[i])
        came = "root" if np.isnan(score) else "one that is not here" if parent < 0 else f"{parent}"
        rows.append(
            [
                f"{i}",
                title,
                came,
                "" if np.isnan(score) else score_text(score),
                f"{example.doc_offsets[i]:,}",
                f"{example.ends[i]:,}",
            ]
        )
    more = f" The table lists the first {MOST_ROWS}." if n > MOST_ROWS else ""
    below = "where a tree ends early, the next begins again at depth 0."
    if f.orphaned:
        where = "is in an example before, or which goes on from there," if f.carries else "was trimmed from its example"
        below = f"one whose retriever {where} stands at depth 0, as roots do."
    more += f" The first {MOST_DOCUMENTS:,} are drawn." if n > MOST_DOCUMENTS else ""
    header = ["#", "document", "retrieved by", "score", "from token", "to token"]
    return [
        Chart(
            f"tree-{number}",
            "Its tree",
            draw_tree(f"tree-{number}", example),
            f"Example {f.shown:,}: {n:,} document{'s' * (n != 1)}, {which}. A document stands one step "
            f"below the one that retrieved it; {below} "
            f"Colours are sixths of its scores.{more}",
            f"{n} documents, {roots} of them roots",
            header,
            rows,
        ),
        Chart(
            f"strip-{number}",
            "Its tokens by document",
            draw_strip(f"strip-{number}", example),
            f"The same example read line by line; the numbers are those of the list{'' if f.words else ' in the table'}. "
            f"{example.padding:,} tokens at its end are padding.",
            f"{n} documents one after the other",
            header,
            rows,
        ),
    ]
