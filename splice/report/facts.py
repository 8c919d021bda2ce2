"""What a report is made of, read once from a dataset's files; page and text only show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..storage import is_remote, local, local_directory, location, names
from ..store import PackedDataset
from ..store.shards import Example
from .columns import Columns, read_columns
from .figures import retriever_settings
from .relatedness import Related, relate
from .svg import printable
from .windows import own_tokens, read_windows, sampled

MOST_DOCUMENTS = 1 << 20  # whose lengths are read
SHOWN_DOCUMENTS = 40  # of the example that is shown
SHOWN_TOKENS = 40  # of each of them
RANKING = ("bm25", "dense", "hybrid")  # the others' scores only count what two paths share
MIXTURE = ("settings.length", "settings.seed", "tokenizer.name", "join.bos_id", "mixture", "tokens", "shards")
BUILD = (
    *(
        f"settings.{name}"
        for name in ("length", "seed", "sources", "retriever", "k", "order", "exhausted", "tail", "join")
    ),
    *(f"settings.{name}" for name in ("dedup", "max_uses")),
    *(
        "tokenizer.name",
        "join.bos_id",
        "scores.mean_step",
        "scores.mean_control",
        "ledger.tokens",
        "ledger.padding",
        "shards",
    ),
)
SOURCE = (
    *(
        "documents_in",
        "packed",
        "left_out",
        "duplicate",
        "near_duplicate",
        "quarantined",
        "filtered",
        "tokens_in",
        "written",
    ),
    *("trimmed", "left_out_tokens", "separators"),
)


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
    def retrievers(self) -> list[str]:
        """What gave the scores: the retriever, of a mixture those of its parts; random packing gives none."""
        parts = self.manifest.get("mixture", [self.manifest["settings"]])
        return list(dict.fromkeys(str(part["retriever"]) for part in parts if part["retriever"] != "random"))

    @property
    def ranks(self) -> bool:
        """Whether its scores rank documents and are all of one kind."""
        return len(self.retrievers) == 1 and self.retrievers[0] in RANKING

    @property
    def score_kind(self) -> tuple[str, ...]:
        """What its scores are of, the retriever first: scores of two kinds do not compare.

        A mixture does not say with which encoder its parts were made, so its scores are of a kind of their own, but for BM25.
        """
        (retriever,) = self.retrievers
        told = (
            [self.name] if self.is_mixture and retriever != "bm25" else list(retriever_settings(self.manifest).values())
        )
        return (retriever, *told)

    @cached_property
    def carries(self) -> bool:
        """Whether documents go on from one example to the next."""
        return self.manifest["settings"].get("tail") == "carry" or not self.columns.opens.all()

    @cached_property
    def orphaned(self) -> bool:
        """Whether what retrieved a document may not be in its example: it is in the one before, or TRIM left nothing of it."""
        c = self.columns
        return self.carries or bool(((c.parent < 0) & ~np.isnan(c.score)).any())

    def known(self, setting: str, value: Any) -> bool:
        """Whether the dataset was built with this value of a setting; of a mixture that is not known."""
        return not self.is_mixture and self.manifest["settings"][setting] == value

    @cached_property
    def scores(self) -> np.ndarray:
        """float32: the scores of all edges that were read, each once."""
        return self.columns.score[self.columns.opens & ~np.isnan(self.columns.score)]


def read_all(datasets: Sequence[Path]) -> list[Facts]:
    """The facts of each dataset, by names that tell them apart. Raises SpliceError for what is none."""
    if not datasets:
        raise SpliceError("no dataset; name the --output of a `splice build`")
    names = distinct_names([location(path) for path in datasets])
    return [read_facts(location(path), names[i], i) for i, path in enumerate(datasets)]


def read_facts(path: Path, name: str, place: int = 0) -> Facts:
    """The facts of the dataset at `path`. Raises SpliceError for what is no finished dataset, or one that cannot be read."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise SpliceError(
            f"{printable(str(path))}: the path is not UTF-8, so Arrow cannot open it; rename it"
        ) from None
    try:
        dataset = PackedDataset(path)
        _require_keys(path, dataset.manifest)
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


def _require_keys(path: Path, manifest: dict[str, Any]) -> None:
    """Raise SpliceError where the manifest lacks what a report shows: another version of splice wrote it."""
    keys = list(MIXTURE if "mixture" in manifest else BUILD)
    sources = [] if "mixture" in manifest else manifest.get("ledger", {}).get("sources", {})
    places = [(key, manifest, key.split(".")) for key in keys]
    places += [(f"ledger.sources.*.{key}", sources[source], [key]) for source in sources for key in SOURCE]
    for key, value, keys_of in places:
        for name in keys_of:
            if name not in value:
                raise SpliceError(
                    f"{path}: its manifest has no {key}; it was made by splice {manifest.get('splice', '(unknown)')}, build it "
                    "again"
                )
            value = value[name]


def _document_tokens(path: Path) -> np.ndarray | None:
    """Tokens of the documents that were packed, int64 up to about MOST_DOCUMENTS, or None where the tables are not there."""
    import pyarrow.parquet as pq

    found: list[np.ndarray] = []
    for name in sorted(names(path / "documents")):
        wanted = name.endswith(".parquet") and name != "refused.parquet"
        if wanted and sum(map(len, found)) < MOST_DOCUMENTS:
            found.append(
                pq.read_table(local(path / "documents" / name), columns=["tokens"], use_threads=False)
                .column(0)
                .to_numpy()
            )
    return np.concatenate(found) if found else None


def _first_words(path: Path, example: Example, bos_id: int | None) -> tuple[str, ...]:
    """The first tokens of the example's first documents as text; nothing where the tokenizer cannot be loaded."""
    if "tokenizer" not in names(path):
        return ()
    directory = local_directory((path if is_remote(path) else path.resolve()) / "tokenizer")
    pieces = [piece[:SHOWN_TOKENS].tolist() for piece in islice(own_tokens(example, bos_id), SHOWN_DOCUMENTS)]
    try:
        decode = _decoder(directory)
        return tuple(decode(piece) for piece in pieces)
    except (SpliceError, OSError):
        return ()


def _decoder(directory: Path) -> Callable[[list[int]], str]:
    """What writes ids as text. The library alone where it can: it need not be proven what ids a text gives."""
    from tokenizers import Tokenizer

    from ..tokenizer import load_tokenizer

    try:
        return Tokenizer.from_file(str(directory / "tokenizer.json")).decode
    except Exception:  # no such file, or one that load_tokenizer has to mend; the library has no error of its own
        return load_tokenizer(str(directory), fast=False).decode
