"""What a task is: groups of queries that share a prefix, and how an answer is scored.

    settings  ->  load  ->  groups of (prefix, queries)  ->  the engine's answers  ->  score  ->  samples

A task is one file of eval/tasks: its settings, its data, the prompt, the score. The engine (engine.py) reads each prefix
once; the runner (run.py) writes samples; statistics are over clusters.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .settings import EngineSettings

if TYPE_CHECKING:
    from .engine import Engine

Count = Callable[[str], int]  # the tokens of a text


@dataclass(frozen=True)
class Query:
    """One question about a group's prefix.

    id         unique in a run; equal in the runs of two models, which is what `compare` joins them by
    item       what is asked, the same in every group that asks it (a test question's number); clusters are crossed with it
    suffix     the text between the prefix and the answer; may be empty
    answers    what is right, any of them, as text that follows the suffix (so with its leading space)
    labels     where not empty: all that may be answered, `answers` among them; scored by label log-likelihood too
    end        text that must follow an answer for a greedy match ("\\n" of a list of demonstrations)
    tags       what results are grouped by: {"position": 37}
    """

    id: str
    item: str
    suffix: str
    answers: tuple[str, ...]
    labels: tuple[str, ...] = ()
    end: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Queries that share a prefix.

    id       unique in a run
    cluster  what is drawn at random as a whole: a demonstration set, a dictionary, a paper; statistics resample clusters
    prefix   the text all queries begin with
    """

    id: str
    cluster: str
    prefix: str
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class Answer:
    """What the model did with a query.

    matched          whether greedy decoding gives one of the answers and then `end`; None where that was not asked
    log_likelihoods  of each label, nats, in their order; empty without labels
    text             what greedy decoding generated; None where that was not asked
    """

    matched: bool | None = None
    log_likelihoods: tuple[float, ...] = ()
    text: str | None = None


@dataclass(frozen=True)
class DataFile:
    """A file that a run read. known: its sha256 is one this package knows; subset: what it is a part of, or None."""

    name: str
    sha256: str
    known: bool
    subset: str | None = None


@dataclass(frozen=True)
class Loaded:
    """A task's data: rows as the task likes them, and the files they came from."""

    rows: Any
    files: tuple[DataFile, ...] = ()


class Task(ABC):
    """One evaluation. Subclasses are listed in eval/tasks/__init__.py, which the command line is made from.

    name       on the command line
    help       one line
    settings   its pydantic class
    metrics    the scores of a sample
    unit       what clusters are called, in the plural
    """

    name: ClassVar[str]
    help: ClassVar[str]
    settings: ClassVar[type[EngineSettings]]
    metrics: ClassVar[tuple[str, ...]]
    unit: ClassVar[str] = "sets"

    @abstractmethod
    def variants(self, settings: Any) -> list[tuple[str, Any]]:
        """(name, settings) of the runs that settings ask for: one a context length, say. The name is the result's directory."""

    @abstractmethod
    def load(self, settings: Any) -> Loaded:
        """Find and read the data. Raises SpliceError for a file that is missing, another one than is known, or malformed."""

    @abstractmethod
    def groups(self, settings: Any, loaded: Loaded, count: Count) -> Iterator[Any]:
        """The prompts, the same for the same settings and tokenizer. `count` is for filling a context to a length."""

    @abstractmethod
    def samples(self, engine: Engine, settings: Any, group: Any, check: int) -> list[dict[str, Any]]:
        """Ask a group; gives its samples, in results.py's form. `check` queries are generated as well as read.

        Raises TooLong where a prompt is over the model's context.
        """

    @abstractmethod
    def scorer(self, settings: Any) -> str:
        """What the first metric is, in words, for the result."""

    def size(self, settings: Any, loaded: Loaded) -> int | None:
        """How many groups there will be, for the time left; None where that is not known before."""
        return None

    def scored(self, settings: Any) -> tuple[str, ...]:
        """The metrics, first the one that is compared."""
        return self.metrics


class QueryTask(Task):
    """A task whose groups are prefixes with queries: what most are."""

    @abstractmethod
    def score(self, settings: Any, query: Query, answer: Answer) -> dict[str, float]:
        """metric -> value of one answer; a metric that does not apply to this query is left out."""

    def scored(self, settings: Any) -> tuple[str, ...]:
        """The metrics, first the one that the scorer asked for is about."""
        return tuple(sorted(self.metrics, key=lambda metric: metric != settings.scorer))

    def scorer(self, settings: Any) -> str:
        return SCORERS[settings.scorer]

    def generates(self, settings: Any, query: Query) -> int:
        """Tokens to generate for a query, 0 where teacher forcing answers it."""
        return settings.answer_tokens if settings.scorer == "generate" else 0

    def samples(self, engine: Engine, settings: Any, group: Group, check: int) -> list[dict[str, Any]]:
        generate = {n: tokens for n, query in enumerate(group.queries) if (tokens := self.generates(settings, query))}
        answered = engine.answer(group, generate, check)
        digest = hashlib.sha256(group.prefix.encode()).hexdigest()[:16]
        samples = []
        for number, (query, answer) in enumerate(zip(group.queries, answered.answers, strict=True)):
            sample = {
                "id": query.id,
                "group": group.id,
                "cluster": group.cluster,
                "item": query.item,
                "tags": dict(query.tags),
                "prefix": digest,
                "prefix_tokens": answered.prefix_tokens,
                "suffix": query.suffix,
                "answers": list(query.answers),
                "prediction": prediction(query, answer),
                "scores": self.score(settings, query, answer),
            }
            if answer.log_likelihoods:
                sample["log_likelihoods"] = list(answer.log_likelihoods)
            if number in answered.agrees:
                sample["agrees"] = answered.agrees[number]
            samples.append(sample)
        return samples


SCORERS = {
    "match": "greedy exact match by teacher forcing",
    "likelihood": "label log-likelihood",
    "generate": "greedy generation",
}


def prediction(query: Query, answer: Answer) -> str | None:
    """What the model said: the text it generated, the likeliest label, the right answer where that matched; else not known."""
    if answer.text is not None:
        return answer.text
    if answer.log_likelihoods:
        return query.labels[max(range(len(query.labels)), key=answer.log_likelihoods.__getitem__)]
    return query.answers[0] if answer.matched else None
