"""HotpotQA (Yang et al. 2018), distractor setting: a question over ten paragraphs, after others that were answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from splice.errors import SpliceError

from ..data import AGAIN, Known, field, find, hub, json_array, json_lines, records
from ..demonstrations import asked, halves, some
from ..scoring import exact_match, first_line, normalise, require_scorer, token_f1
from ..settings import TaskSettings, setting
from ..task import Answer, Count, Group, Loaded, Query, QueryTask
from .documents import Document, numbered

DEV = Known("hotpot_dev_distractor_v1.json", ("4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",))
SUBSET = Known(
    "amor_test500.jsonl",
    (
        "d162e80b71627848ea87530779a335297387abc7141a9c49222b46fdfa73df0e",
        "d2d566c667d789508aa3511d89cfcc3480fc9d62e556a09331be9376be42c075",
    ),
    "500-question subset of HotpotQA (distractor setting); the 2 without paragraphs are left out",
)
SUBSET_SHOTS = Known(
    "amor_dev.jsonl",
    (
        "ecc24eceb30e291e590bca9163ed861cde6ce619212da5471bfaee231a636fb1",
        "96296f21ea67a6e7b18017f657f7c1181e3aebdbd337993500f3280a1c4d7c28",
    ),
    "100-question subset of HotpotQA (distractor setting), for demonstrations",
)
SOURCE = "get hotpot_dev_distractor_v1.json from https://hotpotqa.github.io/, or leave out --data-dir for the hub's"
HUB = "hotpotqa/hotpot_qa"
CLOSED = {"yes", "no", "noanswer"}


class HotpotSettings(TaskSettings):
    """Of HotpotQA."""

    scorer: Literal["match", "likelihood", "generate"] = setting("generate", "how an answer is found: generate alone")
    shots: int = setting(10, "answered questions before the one that is asked", ge=0)
    sets: int = setting(20, "of demonstrations", ge=1)
    queries: int | None = setting(100, "test questions, the same for every set", ge=1)


@dataclass(frozen=True)
class Example:
    """A question, its answer and its paragraphs."""

    question: str
    answer: str
    documents: tuple[Document, ...]

    @property
    def prompt(self) -> str:
        return f"{numbered(self.documents)}\n\nQuestion: {self.question}\nAnswer:"


class Hotpot(QueryTask):
    """A group is a set of demonstrations; its queries are paragraphs and a question each."""

    name = "hotpotqa"
    help = "HotpotQA: questions over ten paragraphs, after answered ones"
    settings = HotpotSettings
    metrics = ("f1", "em")

    def variants(self, settings: HotpotSettings) -> list[tuple[str, HotpotSettings]]:
        require_scorer(self.name, settings.scorer, ("generate",), "F1 is of words that are generated")
        return [(f"hotpotqa-{settings.shots}shot", settings)]

    def load(self, settings: HotpotSettings) -> Loaded:
        """Rows: (demonstrations, test). The published file and the hub's are split in half by the seed."""
        if settings.data_dir is None:
            rows, record = hub(self.name, HUB, "validation", ("question", "answer", "context"), config="distractor")
            return Loaded(halves(_examples(rows), settings.seed), (record,))
        test = find(settings, [DEV, SUBSET], SOURCE)
        if test.known is DEV:
            return Loaded(halves(_examples(json_array(test)), settings.seed), (test.record,))
        shots = find(settings, [SUBSET_SHOTS], SOURCE)
        return Loaded((_examples(json_lines(shots)), _examples(json_lines(test))), (shots.record, test.record))

    def groups(self, settings: HotpotSettings, loaded: Loaded, count: Count) -> Iterator[Group]:
        demonstrations, test = loaded.rows
        items = asked(self.name, len(test), settings.queries, settings.seed)[: settings.limit]
        unseen = {example.question for example in test}
        pool = [example for example in demonstrations if example.question not in unseen]
        for s in range(settings.sets):
            name = f"set-{s:04d}"
            shots = [pool[place] for place in some(len(pool), settings.shots, settings.seed, s, self.name)]
            prefix = "".join(f"{example.prompt} {example.answer}\n\n" for example in shots)
            queries = [
                Query(f"{name}-q{item:05d}", f"q{item:05d}", test[item].prompt, (f" {test[item].answer}",), end="\n")
                for item in items
            ]
            yield Group(name, name, prefix, tuple(queries))

    def score(self, settings: HotpotSettings, query: Query, answer: Answer) -> dict[str, float]:
        """As HotpotQA's own evaluation: yes and no are right or wrong, they share no words with other answers."""
        said = first_line(answer.text or "")
        gold = query.answers[0].strip()
        em = exact_match(said, [gold])
        closed = {normalise(said), normalise(gold)} & CLOSED
        return {"f1": em if closed else token_f1(said, [gold]), "em": em}

    def size(self, settings: HotpotSettings, loaded: Loaded) -> int:
        return settings.sets


def _examples(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[Example]:
    """Those that have paragraphs."""
    found = [_example(where, row) for where, row in rows]
    return [example for example in found if example.documents]


def _example(where: str, row: dict[str, Any]) -> Example:
    """A paragraph is [title, [sentence, ...]], or {title, sentences} on the hub."""
    context = field(where, row, "context", (list, dict))
    try:
        if isinstance(context, dict):
            context = [(one["title"], one["sentences"]) for one in records(context)]
        documents = tuple((title, " ".join(" ".join(sentences).split())) for title, sentences in context)
    except (KeyError, TypeError, ValueError):
        raise SpliceError(f'{where}: field "context" is no list of [title, sentences]; {AGAIN}') from None
    return Example(field(where, row, "question"), field(where, row, "answer"), documents)
