"""Qasper (Dasigi et al. 2021): questions about a paper, after other papers with a question that was answered.

As many of the demonstrations are taken, from none up, as keep the prompt within the context. Questions that all
annotators answered with yes or no are scored by the likelier of the two, the others by the words that are generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from splice.errors import SpliceError
from splice.seeded import permutation

from ..data import AGAIN, Found, Known, field, find, hub, json_object, records
from ..demonstrations import MARGIN
from ..scoring import first_line, labelled, require_scorer, token_f1
from ..settings import TaskSettings, setting
from ..task import Answer, Count, DataFile, Group, Loaded, Query, QueryTask

DEV, TRAIN = Known("qasper-dev-v0.3.json"), Known("qasper-train-v0.3.json")
FIXTURE = Known(
    "qasper_sample_small.json",
    ("942ce1c63822568da0d77ddcbdcfa6f469dad17336cf003fee0e9dbd010ee9ba",),
    "one shortened paper that shows Qasper's format, not its development set",
)
SOURCE = "get qasper-train-dev-v0.3.tgz from https://allenai.org/data/qasper, or leave out --data-dir for the hub's"
HUB, REVISION = "allenai/qasper", "refs/convert/parquet"  # the main branch has a loading script
YES_NO = (" Yes", " No")
NOTHING = "Unanswerable"


class QasperSettings(TaskSettings):
    """Of Qasper."""

    scorer: Literal["match", "likelihood", "generate"] = setting("generate", "how an answer is found: generate alone")
    shots: int = setting(2, "papers with an answered question before the one that is asked about", ge=0)
    context: int = setting(32768, "tokens up to which demonstrations are added", ge=1)
    papers: int | None = setting(None, "the first; default: all", ge=1)
    answer_tokens: int = setting(64, "generated at most", ge=1)


@dataclass(frozen=True)
class Question:
    """answers: one of each annotator."""

    text: str
    answers: tuple[str, ...]

    @property
    def yes_no(self) -> bool:
        return all(f" {answer}" in YES_NO for answer in self.answers)

    @property
    def prompt(self) -> str:
        return f"Question: {self.text}\nAnswer:"


@dataclass(frozen=True)
class Paper:
    """text: title, abstract and sections, a blank line between."""

    id: str
    text: str
    questions: tuple[Question, ...]


class Qasper(QueryTask):
    """A group is a paper, with demonstrations drawn by (seed, paper)."""

    name = "qasper"
    help = "Qasper: questions about a paper, after answered ones about others"
    settings = QasperSettings
    metrics = ("f1",)
    unit = "papers"

    def variants(self, settings: QasperSettings) -> list[tuple[str, QasperSettings]]:
        require_scorer(self.name, settings.scorer, ("generate",), "most answers are free text")
        return [(f"qasper-{settings.shots}shot-{settings.context}", settings)]

    def load(self, settings: QasperSettings) -> Loaded:
        """Rows: (papers to draw demonstrations from, papers that are asked about)."""
        if settings.data_dir is None:
            test, record = _hub("validation")
            train, *more = _hub("train") if settings.shots else ([],)
            return Loaded((train, test), (record, *more))
        found = find(settings, [DEV, FIXTURE], SOURCE)
        if not settings.shots:
            return Loaded(([], _file(found)), (found.record,))
        shots = find(settings, [TRAIN], f"{SOURCE}, or ask for --shots 0")
        return Loaded((_file(shots), _file(found)), (found.record, shots.record))

    def groups(self, settings: QasperSettings, loaded: Loaded, count: Count) -> Iterator[Group]:
        train, test = loaded.rows
        for paper in test[: settings.papers]:
            questions = paper.questions[: settings.limit]
            body = f"{paper.text}\n\n"
            rest = MARGIN + settings.answer_tokens + max(count(question.prompt) for question in paper.questions)
            shots = _shots(_drawn(train, paper, settings), body, settings.context - rest, count)
            queries = [
                Query(
                    f"{paper.id}-q{number:02d}",
                    f"{paper.id}-q{number:02d}",
                    question.prompt,
                    tuple(f" {answer}" for answer in question.answers),
                    YES_NO if question.yes_no else (),
                    end="\n",
                    tags={"type": "yes_no" if question.yes_no else "free", "shots": len(shots)},
                )
                for number, question in enumerate(questions)
            ]
            yield Group(paper.id, paper.id, "".join(shots) + body, tuple(queries))

    def score(self, settings: QasperSettings, query: Query, answer: Answer) -> dict[str, float]:
        if query.labels:
            return {"f1": labelled(query, answer)["likelihood"]}
        return {"f1": token_f1(first_line(answer.text or "") or NOTHING, query.answers)}

    def size(self, settings: QasperSettings, loaded: Loaded) -> int:
        return len(loaded.rows[1][: settings.papers])

    def scorer(self, settings: QasperSettings) -> str:
        return "greedy generation; yes or no by label log-likelihood"

    def generates(self, settings: QasperSettings, query: Query) -> int:
        return 0 if query.labels else settings.answer_tokens


def _drawn(train: Sequence[Paper], paper: Paper, settings: QasperSettings) -> list[str]:
    """Demonstrations for a paper: others, each with one of its questions and its first answer."""
    others = [other for other in train if other.id != paper.id]
    if settings.shots > len(others):
        raise SpliceError(
            f"qasper: --shots {settings.shots}, but there are {len(others)} papers to draw; ask for fewer"
        )
    texts = []
    for place in permutation(len(others), settings.seed, "demonstrations", paper.id)[: settings.shots].tolist():
        shown = others[place]
        which = permutation(len(shown.questions), settings.seed, "question", paper.id, shown.id)[0]
        question = shown.questions[which]
        texts.append(f"{shown.text}\n\n{question.prompt} {question.answers[0]}\n\n")
    return texts


def _shots(drawn: Sequence[str], body: str, room: int, count: Count) -> list[str]:
    """As many of the first demonstrations as leave place for the paper in `room` tokens."""
    taken: list[str] = []
    total = count(body)
    for text in drawn:
        total += count(text)
        if total > room:
            break
        taken.append(text)
    while taken and count("".join(taken) + body) > room:
        taken.pop()
    return taken


def _hub(split: str) -> tuple[list[Paper], DataFile]:
    columns = ("id", "title", "abstract", "full_text", "qas")
    rows, record = hub("qasper", HUB, split, columns, revision=REVISION)
    return _asked(_paper(where, field(where, row, "id"), row) for where, row in rows), record


def _file(found: Found) -> list[Paper]:
    return _asked(_paper(f"{found.path}: {name}", name, row) for name, row in json_object(found).items())


def _asked(papers: Iterable[Paper]) -> list[Paper]:
    """Those that have questions."""
    return [paper for paper in papers if paper.questions]


def _paper(where: str, name: str, row: dict[str, Any]) -> Paper:
    """From the published JSON, or the hub's rows, whose lists of objects are objects of lists."""
    try:
        blocks = [row["title"], row["abstract"]]
        for section in records(row["full_text"]):
            blocks += [section["section_name"], *section["paragraphs"]]
        questions = tuple(
            Question(" ".join(qa["question"].split()), tuple(dict.fromkeys(map(_answer, records(qa["answers"])))))
            for qa in records(row["qas"])
        )
        text = "\n\n".join(block.strip() for block in blocks if block and block.strip())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpliceError(f"{where}: not a paper of Qasper ({type(error).__name__}: {error}); {AGAIN}") from None
    return Paper(name, text, tuple(question for question in questions if question.answers))


def _answer(annotated: dict[str, Any]) -> str:
    """As Qasper's own evaluation reads an annotator's answer; one that says nothing is that there is none."""
    answer = annotated["answer"]
    if answer["unanswerable"]:
        return NOTHING
    if answer["extractive_spans"]:
        return ", ".join(" ".join(span.split()) for span in answer["extractive_spans"])
    if answer["free_form_answer"]:
        return " ".join(answer["free_form_answer"].split())
    return NOTHING if answer["yes_no"] is None else "Yes" if answer["yes_no"] else "No"
