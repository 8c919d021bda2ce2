"""Multi-document question answering (Liu et al. 2023, section 2): one document answers, the others distract.

By the published files, or, where only the questions with their gold document are there, with distractors drawn by the
seed from a pool of other passages: easier than documents a retriever found, and the results say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from splice.errors import SpliceError
from splice.seeded import permutation

from ..data import AGAIN, Known, field, find, json_array, json_lines, look
from ..scoring import best_subspan_em, first_line, normalise, require_scorer
from ..settings import Integers, TaskSettings, setting
from ..task import Answer, Count, Group, Loaded, Query, QueryTask
from .documents import Document, numbered
from .positions import Positions, chosen

HEAD = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).\n\n"
)
PUBLISHED = {10: (0, 4, 9), 20: (0, 4, 9, 14, 19), 30: (0, 4, 9, 14, 19, 24, 29)}  # documents -> the gold's places
ORACLE = Known(
    "nq-open-oracle.jsonl",
    (
        "6a7f72b846f663a133ef952244e5a4e43f06bcf190afe34e8fbe687ce0d1653e",
        "315fb590f71f7556c49152e72c3479d070c5b6a83f37025fe9b1f631d3ebbdcf",
    ),
)
POOL = Known(
    "2wikimultihopqa_corpus.json",
    (
        "f12ed3c7a705a5f957f8aa8e8b0200cd0642f40e6fa228b5798da4eae66d1fab",
        "9d6e352952aafb18dab22bf8195039461321a44a949df902ae83bce134ad238a",
    ),
    "distractors are passages of Wikipedia drawn at random, not the documents that Lost in the Middle retrieved",
)
SOURCE = "give the files of qa_data/ of https://github.com/nelson-liu/lost-in-the-middle with --data-dir"


class NqSettings(TaskSettings):
    """Of multi-document question answering."""

    scorer: Literal["match", "likelihood", "generate"] = setting("generate", "how an answer is found: generate alone")
    documents: Integers = setting([20], "in a prompt, with the one that answers; a run for each")
    positions: Positions | None = setting(
        None, "of the document that answers, from 0, or all; default: the published ones"
    )
    examples: int = setting(500, "questions, the first of the file", ge=1)
    answer_tokens: int = setting(100, "generated at most", ge=1)


@dataclass(frozen=True)
class Example:
    """A question, the answers that are right, the document that has one and those that have none."""

    question: str
    answers: tuple[str, ...]
    gold: Document
    distractors: tuple[Document, ...]


class Nq(QueryTask):
    """A group is one prompt: by question, then by descending position, so that a prompt begins as the one before it."""

    name = "nq"
    help = "multi-document question answering (Natural Questions), by position of the document that answers"
    settings = NqSettings
    metrics = ("best_subspan_em",)
    unit = "questions"

    def variants(self, settings: NqSettings) -> list[tuple[str, NqSettings]]:
        require_scorer(self.name, settings.scorer, ("generate",), "an answer is looked for in what is generated")
        for documents in settings.documents:
            if documents < 1:
                raise SpliceError(f"nq: --documents {documents}, but a prompt has 1 at least")
            chosen("nq", settings.positions, documents, PUBLISHED)
        return [(f"nq-{n}", settings.model_copy(update={"documents": [n]})) for n in settings.documents]

    def load(self, settings: NqSettings) -> Loaded:
        (documents,) = settings.documents
        places = PUBLISHED.get(documents, ())
        names = [Known(f"nq-open-{documents}_total_documents_gold_at_{place}.jsonl") for place in places]
        found = look(settings, names) or find(settings, [ORACLE], SOURCE)
        shown = 1 if found.known is ORACLE else documents
        examples = [_example(where, row, shown) for where, row in json_lines(found)]
        if settings.examples > len(examples):
            raise SpliceError(
                f"nq: --examples {settings.examples}, but {found.path} has {len(examples)}; ask for fewer"
            )
        examples = examples[: settings.examples]
        if found.known is not ORACLE or documents == 1:
            return Loaded(examples, (found.record,))
        pool = find(settings, [POOL], SOURCE)
        passages = [
            (field(where, row, "title"), " ".join(field(where, row, "text").split())) for where, row in json_array(pool)
        ]
        return Loaded(list(_distracted(examples, passages, documents - 1, settings.seed)), (found.record, pool.record))

    def groups(self, settings: NqSettings, loaded: Loaded, count: Count) -> Iterator[Group]:
        (documents,) = settings.documents
        positions = chosen("nq", settings.positions, documents, PUBLISHED)
        for number, example in enumerate(loaded.rows):
            item = f"question-{number:04d}"
            for p in reversed(positions):
                name = f"{item}-{p}"
                shown = [*example.distractors[:p], example.gold, *example.distractors[p:]]
                suffix = f"Question: {example.question}\nAnswer:"
                answers = tuple(f" {answer}" for answer in example.answers)
                query = Query(name, item, suffix, answers, end="\n", tags={"position": p})
                yield Group(name, item, f"{HEAD}{numbered(shown)}\n\n", (query,))

    def score(self, settings: NqSettings, query: Query, answer: Answer) -> dict[str, float]:
        """Of the first line, as the original: a model that copies the documents would always be right."""
        return {"best_subspan_em": best_subspan_em(first_line(answer.text or ""), query.answers)}

    def size(self, settings: NqSettings, loaded: Loaded) -> int:
        (documents,) = settings.documents
        return len(loaded.rows) * len(chosen("nq", settings.positions, documents, PUBLISHED))


def _example(where: str, row: dict[str, Any], shown: int) -> Example:
    """Of a published file, which marks the gold one of the `shown` documents; the others keep their order."""
    pairs = [(field(where, one, "title"), field(where, one, "text")) for one in field(where, row, "ctxs", list)]
    gold = [place for place, one in enumerate(row["ctxs"]) if one.get("isgold")]
    answers = field(where, row, "answers", list)
    if len(pairs) != shown or len(gold) != 1 or not answers or any(not isinstance(answer, str) for answer in answers):
        raise SpliceError(
            f"{where}: {len(pairs)} documents, {len(gold)} of them gold, and {len(answers)} answers; expected {shown}, "
            f"1 and some; {AGAIN}"
        )
    document = pairs.pop(gold[0])
    return Example(field(where, row, "question"), tuple(answers), document, tuple(pairs))


def _distracted(examples: Sequence[Example], passages: Sequence[Document], wanted: int, seed: int) -> Iterator[Example]:
    """The examples with distractors drawn by (seed, question), none of which contains an answer."""
    texts = [normalise(f"{title} {text}") for title, text in passages]
    for number, example in enumerate(examples):
        golds = [gold for gold in map(normalise, example.answers) if gold]
        drawn = []
        for place in permutation(len(passages), seed, "distractors", number).tolist():
            if len(drawn) == wanted:
                break
            if not any(gold in texts[place] for gold in golds):
                drawn.append(passages[place])
        if len(drawn) < wanted:
            raise SpliceError(f"nq: {len(drawn)} passages without an answer to {example.question!r}; lower --documents")
        yield replace(example, distractors=tuple(drawn))
