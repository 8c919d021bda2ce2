"""The report as one HTML file: no request, no picture beside it, readable without its script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .content_charts import composition_charts, document_charts
from .control import FEWEST_WINDOWS
from .example_charts import example_charts
from .facts import SHOWN_DOCUMENTS, Facts
from .figures import score_text, settings_line
from .headline import headline_lines, lead
from .ledger_charts import flow_charts
from .related_charts import relatedness_charts
from .score_charts import score_charts, unscored
from .svg import TINTS, drawing, printable
from .traits import alarm_words, near_words, sampled_words, traits

TEMPLATE = "page.html.j2"


def render(facts: Sequence[Facts]) -> str:
    """The page as text; the same facts give the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["drawn"] = Markup  # what matplotlib wrote; names within it are escaped there
    with drawing():
        return environment.get_template(TEMPLATE).render(context(facts))


def _shown(value: Any) -> Any:
    """What the template writes of a value: names and texts without characters that cannot be shown."""
    return printable(value) if type(value) is str else value


def context(facts: Sequence[Facts]) -> dict[str, Any]:
    """All that the template shows."""
    return {
        "names": [f.name for f in facts],
        "title": ", ".join(f.name for f in facts),
        "lead": [lead(f) for f in facts],
        "settings": [settings_line(f.manifest) for f in facts],
        "headline": headline_lines(facts),
        "traits": traits(facts),
        "related": relatedness_charts(facts),
        "near": [near_words(f) for f in facts],
        "weak": [f.name for f in facts if f.related and f.related.weak],
        "sampled": [sampled_words(f) for f in facts],
        "fewest": FEWEST_WINDOWS,
        "alarm": alarm_words(facts),
        "scores": score_charts(facts),
        "unscored": unscored(facts),
        "documents": document_charts(facts),
        "fill": composition_charts(facts),
        "examples": [
            {"name": f.name, "charts": example_charts(f, i), "words": words(f), "more": _more(f)}
            for i, f in enumerate(facts)
        ],
        "flows": [{"name": f.name, "charts": flow_charts(f, i)} for i, f in enumerate(facts)],
        "version": facts[0].manifest["splice"],
    }


def words(f: Facts) -> list[dict[str, Any]]:
    """The first words of the example's documents, with where they are from."""
    e = f.example
    if e is None:
        return []
    return [
        {
            "number": i,
            "tint": i % len(TINTS),
            "id": e.doc_ids[i],
            "span": f"{e.doc_spans[i, 0]:,}–{e.doc_spans[i, 1]:,}",
            "score": "root" if np.isnan(e.scores[i]) else f"score {score_text(float(e.scores[i]))}",
            "text": text,
        }
        for i, text in enumerate(f.words)
    ]


def _more(f: Facts) -> int:
    return max(0, len(f.example.doc_ids) - SHOWN_DOCUMENTS) if f.example is not None else 0
