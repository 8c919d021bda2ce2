"""The report of a dataset: what it looks like, and how related the documents of an example are, beside a random control.

    facts       what a report is made of, read from the files: manifest, columns, sample, one example
    columns     the light columns of the shards, flat
    windows     the token sample: the documents' own tokens of some examples
    control     the same pieces, dealt anew at random
    measures    figures of one window: bursts, types, shared phrases, compression
    ngrams      the n-grams that several documents of a window hold
    zipf        the exponent of a zeta distribution
    relatedness the measures of dataset and control, with intervals
    figures     the manifest's figures: the headline's rows, the flows
    headline    a dataset in two sentences, and the headline table
    traits      figures that need no picture, and what is said of near-duplicates and of the sample
    shapes      histograms and trends, as numbers
    svg         drawings that take colours and font from the page; plots, flow and example_view draw
    chart       a picture with its sentence and its table: related_charts, score_charts, content_charts, example_charts and
                ledger_charts make those of the page
    page, text  the two forms: one HTML file that requests nothing, and the terminal

Nothing heavy is imported before a report is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

__all__ = ["REPORT", "show_report", "write_report"]

REPORT = "report.html"  # in a dataset's directory


def write_report(datasets: Sequence[Path], output: Path) -> None:
    """Write the page of one dataset, or of several side by side, to `output`, whole or not at all.

    The same datasets give the same bytes. Raises SpliceError for a directory that holds no finished dataset, OSError where
    the page cannot be written.
    """
    from ..files import replacing
    from .facts import read_all
    from .page import render

    page = render(read_all(datasets))
    with replacing(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def show_report(datasets: Sequence[Path], console: Console) -> None:
    """Print the report's figures to the terminal. Raises SpliceError as `write_report`."""
    from .facts import read_all
    from .text import show

    show(read_all(datasets), console)
