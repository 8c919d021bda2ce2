"""Perplexity by position in the context, of documents of at least the context's length: does more context help?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from splice.errors import SpliceError

from ..settings import Integers, TaskSettings, setting
from ..task import Answer, Count, Group, Loaded, Query, Task
from ..texts import ids_of, is_dataset, packed, source_record, texts

if TYPE_CHECKING:
    from ..engine import Engine


class PerplexitySettings(TaskSettings):
    """Of perplexity by position."""

    data: str | None = setting(
        None, "what to read: a .txt (.gz), a tar of such, any source of splice build, or a dataset it built"
    )
    text_field: str = setting("text", "of a JSONL or Parquet row")
    context: Integers = setting([32768], "tokens of a document that are read, no shorter ones are; a run for each")
    windows: int = setting(1, "of a document at most, one after another", ge=1)
    documents: int | None = setting(None, "at most, the first that are long enough", ge=1)


@dataclass(frozen=True)
class Window:
    """Some of a document, in text or in ids, from its token `start` on. queries: none, all of it is predicted."""

    id: str
    cluster: str
    content: str | np.ndarray
    start: int
    queries: tuple[Query, ...] = ()


class Perplexity(Task):
    """A sample is a window of a document; a cluster a document; position p is that of a token that p others come before."""

    name = "perplexity"
    help = "perplexity by position in the context, on any text"
    settings = PerplexitySettings
    metrics = ("nll",)
    unit = "documents"

    def variants(self, settings: PerplexitySettings) -> list[tuple[str, PerplexitySettings]]:
        if not settings.data:
            raise SpliceError("perplexity: no text; name some with --data")
        if any(length < 16 for length in settings.context):
            raise SpliceError(f"perplexity: --context {min(settings.context)}, but the shortest is 16")
        name = settings.data.rstrip("/").rsplit("/", 1)[-1].split(".")[0].replace(":", "-")
        return [(f"perplexity-{name}-{n}", settings.model_copy(update={"context": [n]})) for n in settings.context]

    def load(self, settings: PerplexitySettings) -> Loaded:
        assert settings.data
        if is_dataset(settings.data):
            dataset, record = packed(settings.data)
            return Loaded(dataset, (record,))
        return Loaded(None, (source_record(settings.data),))

    def scorer(self, settings: PerplexitySettings) -> str:
        return "negative log-likelihood of each token, nats"

    def groups(self, settings: PerplexitySettings, loaded: Loaded, count: Count) -> Iterator[Group]:
        """Windows, all of a document one after another; too short ones are found out by `samples`."""
        assert settings.data
        (length,) = settings.context
        if loaded.rows is not None:
            found: Iterator[tuple[str, Any]] = (
                (f"example-{i}", ids_of(loaded.rows, i)) for i in range(len(loaded.rows))
            )
        else:
            found = texts(settings.data, settings.text_field)
        documents = 0
        for name, content in found:
            tokens = count(content) if isinstance(content, str) else len(content)
            if tokens < length:
                continue
            documents += 1
            for number in range(min(settings.windows, tokens // length)):
                yield Window(f"{name}#{number}", name, content, number * length)  # type: ignore[misc]
            if documents == settings.documents:
                return
        if not documents:
            raise SpliceError(f"{settings.data}: no document of {length:,} tokens or more; take a shorter --context")

    def samples(self, engine: Engine, settings: PerplexitySettings, group: Any, check: int) -> list[dict[str, Any]]:
        """One sample: sums of nats by bucket."""
        (length,) = settings.context
        content = group.content
        ids = engine.prompter.ids(content) if isinstance(content, str) else content.tolist()
        bos = [] if engine.prompter.bos is None or not isinstance(content, str) else [engine.prompter.bos]
        window = [*bos, *ids[group.start : group.start + length - len(bos)]]
        losses = engine.losses(window, group.id)
        buckets = [
            [
                start,
                min(2 * start, length),
                float(losses[start - 1 : 2 * start - 1].sum(dtype=np.float64)),
                min(2 * start, length) - start,
            ]
            for start in (2**k for k in range((length - 1).bit_length()))
        ]
        return [
            {
                "id": group.id,
                "group": group.id,
                "cluster": group.cluster,
                "item": group.id,
                "tags": {},
                "prefix": hashlib.sha256(np.asarray(window, np.uint32).tobytes()).hexdigest()[:16],
                "prefix_tokens": len(window),
                "scores": {"nll": float(losses.mean(dtype=np.float64))},
                "buckets": buckets,
            }
        ]

    def score(self, settings: PerplexitySettings, query: Query, answer: Answer) -> dict[str, float]:
        raise NotImplementedError  # samples above has no queries
