"""One evaluation from its settings to its result: groups are asked one by one, their samples kept, then added up."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from splice.errors import RESUME_EVALUATION, EvaluationFailed, Interrupted, SpliceError
from splice.files import check_writable, read_json
from splice.lock import locked

from .engine import TooLong
from .models import Model, open_model
from .results import RESULT, SAMPLES, finish, start
from .screen import Screen
from .settings import ENGINE
from .summary import number, summarise, summary_table
from .task import Loaded, Task

FORMAT = 1  # of results
PLACES = ("data_dir", "data")  # settings that say where, not what
LIBRARIES = ("splice-data", "torch", "transformers", "tokenizers", "numpy")


def run_all(runs: Sequence[tuple[Task, Any]], models: Sequence[tuple[str, Path]], screen: Screen) -> None:
    """Every run on every model (its name, where its results go). Settings and data of all are looked at before a model is opened.

    Raises SpliceError for settings and data that do not do, and as open_model and evaluate; EvaluationFailed where all prompts of
    all runs were left out as too long.
    """
    planned = [(task, name, settings) for task, asked in runs for name, settings in task.variants(asked)]
    twice = [name for name, times in Counter(name for _, name, _ in planned).items() if times > 1]
    if twice:
        raise SpliceError(f"two runs are called {twice[0]}; give them another --output each, or leave one out")
    for _, _, settings in planned:
        if settings.data_dir is not None and not settings.data_dir.is_dir():
            raise SpliceError(f"--data-dir {settings.data_dir}: no such directory")
    for _, output in models:
        check_writable(output, "--output")
    loaded = [task.load(settings) for task, _, settings in planned]
    left_out, done = [], 0
    for model_name, output in models:
        model, opened = None, None
        for (task, name, settings), data in zip(planned, loaded, strict=True):
            wanted = settings.model_dump(include=ENGINE)
            if model is None or wanted != opened:
                model = None  # or both would be in memory
                with interrupted_once(), failing_clearly(output / name):
                    model, opened = open_model(model_name, settings), wanted
                if model.note:
                    screen.say(model.note)
            result = evaluate(model, task, name, settings, data, output, screen)
            if result is None:
                left_out.append(f"{name} of {model_name}")
            else:
                done += 1
    if left_out and not done:
        raise EvaluationFailed("every prompt was over the model's context; ask for shorter ones")
    if left_out:
        screen.say(f"left out as too long: {', '.join(left_out)}")


def evaluate(
    model: Model, task: Task, name: str, settings: Any, loaded: Loaded, output: Path, screen: Screen
) -> dict[str, Any] | None:
    """One run, into OUTPUT/NAME; gives its result, and shows it. None where all its prompts were left out as too long.

    What is finished is not run again; what was begun goes on at the group where it stopped. Raises TooLong for a prompt over the
    context, EvaluationFailed where memory or disk run out, SpliceError where another run is in its place.
    """
    directory = output / name
    with interrupted_once(), failing_clearly(directory), locked(directory, "evaluation"):
        result = _run(model, task, name, settings, loaded, directory, screen)
    if result is not None:
        screen.console.print(summary_table(result))
    return result


def _run(
    model: Model, task: Task, name: str, settings: Any, loaded: Loaded, directory: Path, screen: Screen
) -> dict[str, Any] | None:
    plan = make_plan(model, task, name, settings, loaded)
    samples = start(directory, plan)
    if samples is None:
        screen.say(f"{name}: finished before, in {directory}")
        return read_json(directory / RESULT)
    began = time.monotonic()
    asked: list[dict[str, Any]] = []
    score = Running(task.scored(settings)[0])
    checked = 0
    skipped = {"groups": 0, "queries": 0, "longest": 0}
    try:
        with screen.running(name, task.size(settings, loaded), len(samples.kept)):
            for group in task.groups(settings, loaded, model.engine.prompter.count):
                new = samples.kept.pop(group.id, None)
                before = new is not None
                try:
                    new = new or task.samples(model.engine, settings, group, settings.check - checked)
                except TooLong as long:
                    if settings.too_long == "error":
                        raise
                    skipped["groups"] += 1
                    skipped["queries"] += len(getattr(group, "queries", ())) or 1
                    skipped["longest"] = max(skipped["longest"], long.tokens)
                    continue
                asked += new
                checked += sum("agrees" in sample for sample in new)
                score.add(new)
                if not before:
                    samples.add(new)
                    screen.step(score.text)
    finally:
        samples.close()
    if not asked:
        screen.say(
            f"{name}: left out, every prompt is over the model's context of {model.engine.limit:,} tokens (the longest has "
            f"{skipped['longest']:,})"
        )
        return None
    result = plan | _figures(asked, task, settings, skipped)
    seconds = time.monotonic() - began
    log = {
        "seconds": round(seconds, 3),
        "queries_per_second": round((len(asked) - samples.resumed) / seconds, 3),
        "resumed_queries": samples.resumed,
        "peak_memory_gib": round(_peak_bytes() / 2**30, 3),
    }
    finish(directory, result, log)
    screen.say(
        f"{name}: {len(asked):,} queries in {seconds:,.1f} s, peak memory {log['peak_memory_gib']:.2f} GiB; {directory}"
    )
    return result


class Running:
    """The mean of a metric so far, for the screen."""

    def __init__(self, metric: str) -> None:
        self._metric, self._sum, self._count = metric, 0.0, 0

    def add(self, samples: Sequence[dict[str, Any]]) -> None:
        values = [sample["scores"][self._metric] for sample in samples if self._metric in sample["scores"]]
        self._sum, self._count = self._sum + sum(values), self._count + len(values)

    @property
    def text(self) -> str:
        """`match 81.2 so far`."""
        return f"{self._metric} {number(self._metric, self._sum / self._count)} so far" if self._count else ""


@contextmanager
def interrupted_once() -> Iterator[None]:
    """The first SIGINT interrupts; another, which a terminal sends beside a supervisor's, does not disturb the ending."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:  # else the process is ending, and the other one may still come
            signal.signal(signal.SIGINT, before)


def make_plan(model: Model, task: Task, name: str, settings: Any, loaded: Loaded) -> dict[str, Any]:
    """What a run is, all that its samples depend on; `fingerprint` is over the rest."""
    values = settings.model_dump(mode="json", exclude=set(PLACES))
    plan: dict[str, Any] = {
        "format": FORMAT,
        "task": task.name,
        "name": name,
        "model": model.facts,
        "settings": values,
        "data": [vars(file) for file in loaded.files],
        "subset": "; ".join(dict.fromkeys(file.subset for file in loaded.files if file.subset)) or None,
        "seed": settings.seed,
        "scorer": task.scorer(settings),
        "unit": task.unit,
        "versions": {library: _version(library) for library in LIBRARIES},
    }
    plan["fingerprint"] = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]
    return plan


def _figures(asked: Sequence[dict[str, Any]], task: Task, settings: Any, skipped: dict[str, int]) -> dict[str, Any]:
    counts = {
        "groups": len({sample["group"] for sample in asked}),
        "clusters": len({sample["cluster"] for sample in asked}),
        "queries": len(asked),
        "skipped": skipped if skipped["groups"] else None,
        "longest_prefix": max(sample["prefix_tokens"] for sample in asked),
    }
    checked = [sample["agrees"] for sample in asked if "agrees" in sample]
    check = {"generated_too": len(checked), "agree": sum(checked)} if checked else None
    figures = summarise(asked, task.scored(settings), settings.seed, task.unit)
    if check and check["agree"] < check["generated_too"]:
        figures["warnings"] = [
            *figures["warnings"],
            f"of {check['generated_too']} queries generated too, {check['generated_too'] - check['agree']} gave something else than "
            "teacher forcing says: near ties in low precision; take --dtype float32 or --scorer generate",
        ]
    return counts | {"check": check} | figures


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _peak_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def failing_clearly(directory: Path) -> Iterator[None]:
    """Full disks, full memory and interrupts as errors that say how to go on."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise out_of_memory(error, _kept(directory)) from error
    except OSError as error:
        raise EvaluationFailed(
            f"{error.filename or directory}: {error.strerror or error}; mend it, or name another --output. {_kept(directory)}"
        ) from error
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted. {_kept(directory)}") from None


def _kept(directory: Path) -> str:
    samples = directory / SAMPLES
    there = samples.is_file() and samples.stat().st_size > 0
    return RESUME_EVALUATION if there else "Nothing was asked yet."


def out_of_memory(error: torch.OutOfMemoryError, kept: str) -> EvaluationFailed:
    """As a sentence; `kept` says what is and how to go on."""
    held = str(error).split(". ")[0]
    return EvaluationFailed(f"out of GPU memory ({held}); a smaller --batch-tokens or --chunk needs less. {kept}")
