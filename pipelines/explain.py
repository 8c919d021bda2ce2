"""`splice build --explain`: the stages as the engine will see them, without doing any of them.

The stages' own functions are asked for their tasks, by a run that runs nothing: it gives them the receipts that are there and
reckons the others. What they write beside their tasks goes to a directory that is thrown away.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from splice.settings import BuildSettings
from splice.sources import Unit
from splice.stages.assign import PART_BYTES
from splice.storage import location, names
from splice.task import Receipt, Task, receipts

from . import rates
from .beam import JOB_TASKS
from .capacity import documents_of
from .link import EMBED_WEIGHT
from .run import Run, Stage
from .runners import runner_options, runs_here
from .stages import TOKENISED_BYTES

if TYPE_CHECKING:
    from splice.encoder import Located

# Stage -> what its tasks read, what they leave, and the unit of their weights with what one weight is of it.
FILES: dict[str, tuple[str, str, str, float]] = {
    "read": ("the sources", "read/: documents that pass the filters", "MB", 1e-6),
    "centroids": ("samples in read/", "the clusters", "", 0),
    "cluster": ("read/, the clusters", "each document's cluster", "MB", 1e-6),
    "assign": ("the keys in read/", "assign/: each document's pack, duplicates", "", 0),
    "gather": ("assign/, read/", "packs/: the documents of a pack, in parts", "MB", 1e-6),
    "tokenizer": ("a sample in assign/", "tokenizer/", "", 0),
    "tokenise": ("a part of packs/", "tokens/, documents/", "MB", TOKENISED_BYTES * 1e-6),
    "embed": ("a block of packs/", "embeddings/", "documents", 1 / EMBED_WEIGHT),
    "index": ("a pack, or its embeddings", "index/", "documents", 1),
    "search": ("the index of a pack", "graph/: neighbours", "documents", 1),
    "walk": ("graph/, tokens/ and index of a pack", "plan/: the examples", "documents", 1),
    "lay": ("plan/, packs/ and tokens/ of a pack", "laid/: its examples, one by one", "examples", 1),
    "write": ("laid/, or plan/, packs/ and tokens/", "data/: a shard", "examples", 1),
}


@dataclass(frozen=True)
class Explained:
    """One stage: its tasks, those of them that are done, and the stages that must be.

    about: its tasks are reckoned, as what comes before it has not been done; group: stages of one number share the workers.
    """

    name: str
    tasks: list[Task]
    weights: list[int]
    done: int
    waits_for: list[str]
    about: bool
    group: int

    @property
    def largest(self) -> tuple[str, int]:
        """Name and weight of the task with most work."""
        weight, task = max(zip(self.weights, self.tasks, strict=True), key=lambda pair: pair[0])
        return task.name, weight


@dataclass
class Asking(Run):
    """A run that notes what it is to run and runs nothing. moved: the directories the tasks name -> where they lie."""

    units: list[Unit] = field(default_factory=list)
    moved: dict[str, Path] = field(default_factory=dict)
    stages_asked: list[Explained] = field(default_factory=list)
    forgotten: set[tuple[str, str]] = field(default_factory=set)

    def stage(self, name: str, tasks: list[Task], weights: Sequence[int], threads: int = 0) -> list[Receipt]:
        """The tasks' receipts, reckoned where there is none."""
        return self._ask([Stage(name, tasks, list(weights))])[name]

    def together(self, stages: list[Stage]) -> dict[str, list[Receipt]]:
        """As `stage`, of several."""
        return self._ask(stages)

    def receipts(self, tasks: list[Task]) -> list[Receipt | None]:
        """As they lie where the tasks' directories do."""
        there = receipts([replace(task, directory=str(self._place(location(task.directory)))) for task in tasks])
        return [
            None if (task.stage, task.name) in self.forgotten else receipt
            for task, receipt in zip(tasks, there, strict=True)
        ]

    def forget(self, tasks: list[Task], directory: Path, files: Callable[[Task], Iterable[str]]) -> None:
        """Note it, and remove nothing."""
        there = names(self._place(directory))
        self.forgotten |= {(task.stage, task.name) for task in tasks if not there.issuperset(files(task))}

    def _ask(self, stages: list[Stage]) -> dict[str, list[Receipt]]:
        before = self.stages_asked[-1].group if self.stages_asked else 0
        waiting = [e.name for e in self.stages_asked if e.group == before and not self._is_awaited(e)]
        about = any(e.done < len(e.tasks) for e in self.stages_asked if GUESSED.get(e.name))
        found = {}
        for stage in stages:
            there = self.receipts(stage.tasks)
            inside = {task.after for task in stage.tasks} & {other.name for other in stages}
            done = sum(receipt is not None for receipt in there)
            self.stages_asked.append(
                Explained(
                    name=stage.name,
                    tasks=stage.tasks,
                    weights=stage.weights,
                    done=done,
                    waits_for=sorted(inside) or waiting,
                    about=about and stage.name not in SINGLE,
                    group=before + 1,
                )
            )
            found[stage.name] = [
                self._reckon(stage.name, task, weight) if receipt is None else receipt
                for task, weight, receipt in zip(stage.tasks, stage.weights, there, strict=True)
            ]
        return found

    def _is_awaited(self, explained: Explained) -> bool:
        return any(explained.name in other.waits_for for other in self.stages_asked if other.group == explained.group)

    def _place(self, directory: Path) -> Path:
        for parent in (directory, *directory.parents):
            if str(parent) in self.moved:
                return self.moved[str(parent)] / directory.relative_to(parent)
        return directory

    def _reckon(self, name: str, task: Task, weight: int) -> Receipt:
        guess = GUESSED.get(name)
        return guess(self, task, weight) if guess else dict(NOTHING)


SINGLE = ("centroids", "assign", "tokenizer")  # one task, whatever the input
NOTHING = {"documents": 0, "tokens": 0, "vocab_size": 0, "bos_id": 0, "eos_id": 0, "pad_id": 0, "name": "", "dimension": None,
           "max_tokens": None, "parts": None, "device": ""}  # fmt: skip


def _guess_read(asking: Asking, task: Task, _: int) -> Receipt:
    unit = asking.units[task.args["number"]]
    without = dict.fromkeys(("repo", "path", "domain"), 0)
    return {"source": unit.source, "kept": documents_of(unit), "without": without, "bytes": unit.bytes}


def _guess_assign(asking: Asking, task: Task, _: int) -> Receipt:
    documents = sum(kept for _, kept in task.args["units"])
    size = sum(unit.bytes for unit in asking.units)
    packs = max(1, -(-documents // asking.settings.pack_documents))
    parts = max(1, -(-size // packs // PART_BYTES))
    edges = [documents * i // (packs * parts) for i in range(packs * parts + 1)]
    cuts = [(a, b, size // (packs * parts)) for a, b in pairwise(edges)]
    return {"packs": [cuts[i : i + parts] for i in range(0, len(cuts), parts)], "documents": documents}


def _guess_walk(asking: Asking, task: Task, weight: int) -> Receipt:
    size = sum(unit.bytes for unit in asking.units) / max(1, sum(documents_of(unit) for unit in asking.units))
    return {"examples": max(1, int(weight * size * rates.TOKENS_PER_BYTE / asking.settings.length))}


# What later stages' tasks go by, reckoned from the size of the input.
GUESSED = {"read": _guess_read, "assign": _guess_assign, "walk": _guess_walk}


def explain(s: BuildSettings, beam_options: Sequence[str], console: Console) -> tuple[list[Explained], list[str]]:
    """The stages of the build that `s` describes, none where it is complete, and the runner's options.

    Writes nothing where the build would. Raises SpliceError as the build would before any work.
    """
    from .build import absolute, check_tokenizer, list_inputs, stage_directories, with_threads
    from .claim import claim, finished
    from .link import check_embeddings, encoder_of
    from .processes import TaskProcesses
    from .stages import check_retriever, contamination_of, source_settings

    assert s.output is not None
    options = runner_options(beam_options, s.worker_count)
    s = with_threads(s, options)
    output = absolute(s.output)
    work = absolute(s.work) if s.work else output / "work"
    units, inputs = list_inputs(s.sources, source_settings(s))
    check_retriever(s, units)
    encoder = encoder_of(s)
    contamination = contamination_of(s)
    inputs += contamination.fingerprint if contamination is not None else ""
    directories = stage_directories(s, inputs, work, encoder)
    check_embeddings(encoder, directories.get("embed"))
    check_tokenizer(s, directories["tokens"])
    claim(s, directories["write"], output, write=False)
    if finished(output, directories["write"]) is not None:
        return [], options
    with tempfile.TemporaryDirectory(prefix="splice-explain-") as scratch, TaskProcesses(1) as none:
        elsewhere = {stage: Path(scratch) / path.name for stage, path in directories.items()}
        asking = Asking(s, options, console, none, [], units=units)
        asking.moved = {str(elsewhere[stage]): path for stage, path in directories.items()}
        asking.moved[scratch] = output
        _ask_all(asking, encoder, elsewhere, Path(scratch))
    return asking.stages_asked, options


def _ask_all(asking: Asking, encoder: Located | None, directories: dict[str, Path], output: Path) -> None:
    from .stages import ingest, plan, tokenise_and_link, write

    ingested = ingest(asking, asking.units, None, directories["ingest"])
    tokens, graph = tokenise_and_link(asking, ingested, encoder, directories)
    plans = plan(asking, ingested, tokens, graph, directories)
    write(asking, ingested, tokens, plans, directories, output)


def show_explained(s: BuildSettings, beam_options: Sequence[str], console: Console) -> None:
    """Print every stage: its pipeline, tasks, the largest, what it waits for, reads and leaves; and the runner."""
    stages, options = explain(s, beam_options, console)
    if not stages:
        console.print(f"{s.output}: complete already, nothing to do", highlight=False, markup=False, soft_wrap=True)
        return
    numbers = pipelines(stages, runs_here(options), s.worker_count)
    lines = [_lines(stage, numbers[stage.name]) for stage in stages]
    if any(stage.about for stage in stages):
        lines.append("about: reckoned from the size of the input, and known once documents are assigned to packs")
    lines.append(f"runner: {' '.join(options)}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def pipelines(stages: list[Explained], here: bool, workers: int) -> dict[str, str]:
    """Which of the engine's pipelines each stage is in, or why in none.

    Elsewhere a stage that waits for another of its group has a pipeline of its own; here the workers see to it.
    """
    found: dict[str, str] = {}
    number = 0
    for group in sorted({stage.group for stage in stages}):
        todo = [stage for stage in stages if stage.group == group and stage.done < len(stage.tasks)]
        found |= {stage.name: "done already" for stage in stages if stage.group == group}
        names = {stage.name for stage in todo}
        while todo:
            if here and workers == 1:
                wave = todo[:1]
            else:
                wave = [stage for stage in todo if here or not names.intersection(stage.waits_for)]
            if here and sum(len(stage.tasks) - stage.done for stage in wave) == 1:
                found |= {stage.name: "in the driver" for stage in wave}
            else:
                jobs = 1 if here else -(-sum(len(stage.tasks) - stage.done for stage in wave) // JOB_TASKS)
                which = f"pipeline {number + 1}" if jobs == 1 else f"pipelines {number + 1} to {number + jobs}"
                number += jobs
                found |= {stage.name: which for stage in wave}
            todo = [stage for stage in todo if stage not in wave]
            names = {stage.name for stage in todo}
    return found


def _lines(stage: Explained, pipeline: str) -> str:
    reads, leaves, unit, scale = FILES.get(stage.name, ("", "", "", 0))
    about = "about " if stage.about else ""
    count = f"{about}{len(stage.tasks):,} task{'s' * (len(stage.tasks) != 1)}"
    if 0 < stage.done < len(stage.tasks):
        count += f", {stage.done:,} done already"
    name, weight = stage.largest
    largest = f", largest {name}" * (len(stage.tasks) > 1)
    if scale:
        amount = f"{weight * scale:,.1f}" if unit == "MB" else f"{weight * scale:,.0f}"
        largest += f" ({about}{amount} {unit})"
    waits = ", ".join(stage.waits_for)
    return (
        f"{stage.name}: {count}{largest}; {pipeline}\n"
        f"    {f'waits for {waits}; ' if waits else ''}reads {reads}; leaves {leaves}"
    )
