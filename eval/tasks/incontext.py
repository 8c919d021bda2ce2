"""Classification from demonstrations in the prompt: what TREC and DBpedia have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from splice.errors import SpliceError

from ..demonstrations import fill, some
from ..scoring import labelled
from ..settings import Integers, TaskSettings, setting
from ..task import Answer, Count, Group, Loaded, Query, QueryTask

CONTEXT = 16384  # tokens, where neither --shots nor --context is given


class InContextSettings(TaskSettings):
    """Of classification from demonstrations."""

    shots: Integers | None = setting(None, "demonstrations in a prompt; a run for each")
    context: Integers | None = setting(
        None, f"tokens that demonstrations, query and answer fill; a run for each; default without --shots: {CONTEXT}"
    )
    sets: int = setting(20, "of demonstrations", ge=1)
    queries: int | None = setting(None, "test items that a set is asked", ge=1)
    answer_tokens: int = setting(16, "generated at most", ge=1)


@dataclass(frozen=True, slots=True)
class Example:
    """A text and its label."""

    text: str
    label: str


@dataclass(frozen=True)
class Rows:
    """demonstrations: what sets are drawn from, none of it in test; labels: all there are."""

    demonstrations: Sequence[Example]
    test: Sequence[Example]
    labels: tuple[str, ...]


class InContext(QueryTask):
    """A group is a set of demonstrations, drawn by (seed, set); its queries are test items."""

    metrics = ("match", "likelihood")

    def variants(self, settings: Any) -> list[tuple[str, Any]]:
        """One for each --shots and each --context."""
        if any(number < 1 for number in (*(settings.shots or ()), *(settings.context or ()))):
            raise SpliceError(f"{self.name}: --shots and --context are positive numbers")
        by_shots = [(f"{n}shot", {"shots": [n], "context": None}) for n in settings.shots or ()]
        contexts = settings.context or ([] if by_shots else [CONTEXT])
        by_context = [(str(n), {"shots": None, "context": [n]}) for n in contexts]
        title = self.title(settings)
        return [(f"{title}-{what}", settings.model_copy(update=one)) for what, one in (*by_shots, *by_context)]

    @abstractmethod
    def title(self, settings: Any) -> str:
        """What a run's name begins with."""

    @abstractmethod
    def ask(self, text: str) -> str:
        """A query: all but the label, which follows after a space."""

    @abstractmethod
    def asked(self, settings: Any, rows: Rows, s: int) -> list[int]:
        """The test items that set s is asked, of rows.test."""

    def groups(self, settings: Any, loaded: Loaded, count: Count) -> Iterator[Group]:
        rows: Rows = loaded.rows
        labels = tuple(f" {label}" for label in rows.labels)
        answer = max(settings.answer_tokens, *(count(f"{label}\n") for label in labels))
        length = {}  # of a test item's query, tokens

        def demonstration(place: int) -> str:
            example = rows.demonstrations[place]
            return f"{self.ask(example.text)} {example.label}\n"

        pool = len(rows.demonstrations)
        for s in range(settings.sets):
            items = self.asked(settings, rows, s)
            if settings.shots:
                places = some(pool, settings.shots[0], settings.seed, s, self.name)
            else:
                for item in items:
                    length[item] = length.get(item) or count(self.ask(rows.test[item].text))
                rest = answer + max(length[item] for item in items)
                places = fill(pool, demonstration, settings.context[0], rest, settings.seed, s, count, self.name)
            name = f"set-{s:04d}"
            queries = [
                Query(f"{name}-q{item:05d}", f"q{item:05d}", self.ask(test.text), (f" {test.label}",), labels, end="\n")
                for item, test in ((item, rows.test[item]) for item in items[: settings.limit])
            ]
            yield Group(name, name, "".join(map(demonstration, places)), tuple(queries))

    def score(self, settings: Any, query: Query, answer: Answer) -> dict[str, float]:
        return labelled(query, answer)

    def size(self, settings: Any, loaded: Loaded) -> int:
        return settings.sets


def disjoint(demonstrations: Sequence[Example], test: Sequence[Example]) -> list[Example]:
    """The demonstrations without repeated texts and without those of the test items."""
    seen = {example.text for example in test}
    kept = []
    for example in demonstrations:
        if example.text not in seen:
            seen.add(example.text)
            kept.append(example)
    return kept
