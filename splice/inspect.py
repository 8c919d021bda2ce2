"""`splice inspect`: one example in the terminal."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .errors import SpliceError
from .report.figures import score_text
from .storage import local_directory
from .store import PackedDataset

EXCERPT_TOKENS = 64


def show_example(path: Path, index: int, console: Console) -> None:
    """Print the documents of example `index`: parents, scores, token ranges, first line of text."""
    from .tokenizer import load_tokenizer

    dataset = PackedDataset(path)
    if not -len(dataset) <= index < len(dataset):
        raise SpliceError(f"{path}: no example {index}; it holds {len(dataset)}, numbered from 0")
    example = dataset[index]
    tokenizer = load_tokenizer(str(local_directory(dataset.path / "tokenizer")), fast=False)
    table = Table(box=None, pad_edge=False)
    for name in ("#", "parent", "score", "tokens", "of document"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("document, and its text here", ratio=1)  # may wrap, so that it alone gives way; its texts do not
    for i, name in enumerate(example.doc_ids):
        start, end = int(example.doc_offsets[i]), int(example.ends[i])
        excerpt = tokenizer.decode(example.input_ids[start : min(end, start + EXCERPT_TOKENS)])
        score, parent = float(example.scores[i]), int(example.parents[i])
        a, b = example.doc_spans[i]
        title = (name, "bold")
        text = (" ".join(excerpt.split()), "dim")
        table.add_row(
            str(i),
            "root" if math.isnan(score) else "earlier" if parent < 0 else str(parent),
            "" if math.isnan(score) else score_text(score),
            f"{start}:{end}",
            f"{a}:{b}",
            Text.assemble(title, "\n", text, no_wrap=True, overflow="ellipsis"),
        )
    console.print(
        f"example {index % len(dataset)} of {len(dataset)} (number {example.number} of the plan, pack {example.pack}): "
        f"{len(example.doc_ids)} documents, {dataset.length - example.padding} tokens, {example.padding} padding",
        highlight=False,
        soft_wrap=True,
    )
    console.print(table)
