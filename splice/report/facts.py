"""What a report is made of, read once from a dataset's files; page and text only show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..store import PackedDataset
from ..store.shards import Example
from .columns import Columns, read_columns
from .relatedness import Related, relate
from .windows import own_tokens, read_windows, sampled

MOST_DOCUMENTS = 1 << 20  # whose lengths are read
SHOWN_DOCUMENTS = 40  # of the example that is shown
SHOWN_TOKENS = 40  # of each of them


@dataclass(frozen=True)
class Facts:
    """One dataset.

    place: among the datasets of the report. documents: int64 [N], tokens of documents; whole: whether of whole ones, or of
    their pieces in examples.
    example: the one that is shown, at place `shown`, with the first words of its first documents.
    """

    name: str
    place: int
    manifest: dict[str, Any]
    columns: Columns
    documents: np.ndarray
    whole: bool
    related: Related | None
    shown: int
    example: Example | None
    words: tuple[str, ...]

    @property
    def is_mixture(self) -> bool:
        """Whether it was made by `splice mix`."""
        return "mixture" in self.manifest

    @property
    def length(self) -> int:
        """Tokens of an example."""
        return self.manifest["settings"]["length"]

    @cached_property
    def examples(self) -> int:
        """Examples of the dataset."""
        return sum(shard["examples"] for shard in self.manifest["shards"])

    @property
    def score_kind(self) -> str:
        """What gave the scores: the retriever, of a mixture those of its parts that give any."""
        parts = self.manifest.get("mixture", [self.manifest["settings"]])
        return " + ".join(dict.fromkeys(str(part["retriever"]) for part in parts if part["retriever"] != "random"))

    @cached_property
    def scores(self) -> np.ndarray:
        """float32: the scores of all edges that were read."""
        return self.columns.score[~np.isnan(self.columns.score)]


def read_all(datasets: Sequence[Path]) -> list[Facts]:
    """The facts of each dataset, by names that tell them apart. Raises SpliceError for what is none."""
    if not datasets:
        raise SpliceError("no dataset; name the --output of a `splice build`")
    names = distinct_names([Path(path) for path in datasets])
    return [read_facts(Path(path), names[i], i) for i, path in enumerate(datasets)]


def read_facts(path: Path, name: str, place: int = 0) -> Facts:
    """The facts of the dataset at `path`. Raises SpliceError for what is no finished dataset, or one that cannot be read."""
    try:
        dataset = PackedDataset(path)
        seed = dataset.manifest["settings"]["seed"]
        columns = read_columns(dataset, seed, sources="mixture" in dataset.manifest)
        related = relate(read_windows(dataset, sampled(dataset, seed)), seed)
        whole = _document_tokens(path)
        shown = columns.median_example if len(columns) else 0
        example = dataset[shown] if len(columns) else None
    except (OSError, ValueError, LookupError, TypeError) as error:  # Arrow's errors are among them
        raise SpliceError(
            f"{path}: cannot be read ({type(error).__name__}: {error}); `splice validate {path}` says what is wrong"
        ) from None
    return Facts(
        name=name,
        place=place,
        manifest=dataset.manifest,
        columns=columns,
        documents=columns.tokens if whole is None else whole,
        whole=whole is not None,
        related=related,
        shown=shown,
        example=example,
        words=_first_words(path, example, dataset.manifest["join"]["bos_id"]) if example else (),
    )


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many of the last parts as tell the paths apart; numbered where they are the same."""
    parts = [path.resolve().parts for path in paths]
    for n in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-n:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{path.resolve().name} ({i})" for i, path in enumerate(paths, 1)]


def _document_tokens(path: Path) -> np.ndarray | None:
    """Tokens of the documents that were packed, int64 up to about MOST_DOCUMENTS, or None where the tables are not there."""
    import pyarrow.parquet as pq

    found: list[np.ndarray] = []
    for table in sorted((path / "documents").glob("*.parquet")):
        if table.name != "refused.parquet" and sum(map(len, found)) < MOST_DOCUMENTS:
            found.append(pq.read_table(table, columns=["tokens"], use_threads=False).column(0).to_numpy())
    return np.concatenate(found) if found else None


def _first_words(path: Path, example: Example, bos_id: int | None) -> tuple[str, ...]:
    """The first tokens of the example's first documents as text; nothing where the tokenizer cannot be loaded."""
    from ..tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(str(path / "tokenizer"), fast=False)
    except (SpliceError, OSError):
        return ()
    pieces = list(own_tokens(example, bos_id))[:SHOWN_DOCUMENTS]
    return tuple(tokenizer.decode(piece[:SHOWN_TOKENS]) for piece in pieces)
