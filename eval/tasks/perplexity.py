"""Perplexity by position in the context, of documents of at least the context's length: does more context help?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from splice.errors import SpliceError

from ..settings import EngineSettings, Integers, setting
from ..task import Count, Loaded, Task
from ..texts import ids_of, is_dataset, packed, source_record, texts

if TYPE_CHECKING:
    from ..engine import Engine


class PerplexitySettings(EngineSettings):
    """Of perplexity by position."""

    data: str | None = setting(
        None, "what to read: a .txt (.gz), a tar of such, any source of splice build, or a dataset it built"
    )
    text_field: str = setting("text", "of a JSONL or Parquet row")
    context: Integers = setting([32768], "tokens of a document that are read, no shorter ones are; a run for each")
    windows: int = setting(1, "of a document at most, one after another", ge=1)
    documents: int | None = setting(None, "at most, the first that are long enough", ge=1)


@dataclass(frozen=True)
class Text:
    """A document, in text or in ids; a sample is a window of it, of which there are `windows`, all of one cluster."""

    id: str
    content: str | np.ndarray
    windows: int


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

    def groups(self, settings: PerplexitySettings, loaded: Loaded, count: Count) -> Iterator[Text]:
        """Documents of at least the context's length."""
        assert settings.data
        (length,) = settings.context
        if loaded.rows is not None:
            found: Iterator[tuple[str, Any]] = (
                (f"example-{i}", ids_of(loaded.rows, i)) for i in range(len(loaded.rows))
            )
        else:
            found = texts(settings.data, settings.text_field)
        documents = 0
        times: Counter[str] = Counter()
        for name, content in found:
            tokens = count(content) if isinstance(content, str) else len(content)
            if tokens < length:
                continue
            documents += 1
            times[name] += 1
            unique = name if times[name] == 1 else f"{name} ({times[name]})"
            yield Text(unique, content, min(settings.windows, tokens // length))
            if documents == settings.documents:
                return
        if not documents:
            raise SpliceError(f"{settings.data}: no document of {length:,} tokens or more; take a shorter --context")

    def samples(self, engine: Engine, settings: PerplexitySettings, group: Text, check: int) -> list[dict[str, Any]]:
        """A sample a window: sums of nats by bucket."""
        (length,) = settings.context
        content, bos = group.content, engine.prompter.bos
        if isinstance(content, str):
            ids, begin = engine.prompter.ids(content), [] if bos is None else [bos]
        else:
            ids, begin = content.tolist(), []
        samples = []
        for number in range(group.windows):
            window = [*begin, *ids[number * length : (number + 1) * length - len(begin)]]
            name = f"{group.id}#{number}"
            losses = engine.losses(window, name)
            samples.append(
                {
                    "id": name,
                    "group": group.id,
                    "cluster": group.id,
                    "item": name,
                    "tags": {},
                    "prefix": hashlib.sha256(np.asarray(window, np.uint32).tobytes()).hexdigest()[:16],
                    "prefix_tokens": len(window),
                    "scores": {"nll": float(losses.mean(dtype=np.float64))},
                    "buckets": [_bucket(losses, 2**k) for k in range((length - 1).bit_length())],
                }
            )
        return samples


def _bucket(losses: np.ndarray, start: int) -> list[float]:
    """[from, to, nats, tokens] of positions start to 2 start - 1; losses[0] is that of position 1."""
    inside = losses[start - 1 : 2 * start - 1]
    return [start, start + len(inside), float(inside.sum(dtype=np.float64)), len(inside)]
