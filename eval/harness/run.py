"""A run of lm-eval's tasks, its samples, and its result among those of the other evaluations."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, make_table

from splice.errors import EvaluationFailed, SpliceError
from splice.files import read_json
from splice.lock import locked

from ..models import Model
from ..results import PLAN, RESULT, finish, start
from ..run import FORMAT, LIBRARIES, out_of_memory
from ..screen import Screen
from ..settings import EngineSettings
from ..summary import summarise
from .model import SpliceLM, TooLongRule

ENVIRONMENT = ("samples", "date", "git_hash", "upper_git_hash", "pretty_env_info", "total_evaluation_time_seconds")
NOTHING: dict[str, Any] = {"metrics": {}, "by": {}, "buckets": [], "warnings": []}  # averaged over documents


def open_tasks(include_path: Path | None) -> TaskManager:
    """lm-eval's tasks and those of a directory of YAML files; reading them takes seconds. Raises SpliceError for no directory."""
    if include_path and not include_path.is_dir():
        raise SpliceError(f"--include-path {include_path}: no such directory; name the one of the tasks' YAML files")
    return TaskManager(include_path=str(include_path) if include_path else None)


def find_tasks(tasks: Sequence[str], manager: TaskManager) -> list[str]:
    """The tasks, groups and tags that names and patterns (mmlu_*) mean. Raises SpliceError for none, and for one of none."""
    if not tasks:
        raise SpliceError("--tasks: names none; give those of lm-evaluation-harness, as mmlu,gsm8k")
    names = []
    for task in tasks:
        matched = [task] if Path(task).is_file() else manager.match_tasks([task])
        if not matched:
            close = ", ".join(difflib.get_close_matches(task, manager.all_tasks, 3))
            raise SpliceError(
                f"{task}: lm-evaluation-harness has no such task{close and f'; did you mean {close}?'}; `lm_eval ls tasks` lists "
                "them, and --include-path names a directory with more"
            )
        names += matched
    return list(dict.fromkeys(names))


def run_harness(
    model: Model,
    tasks: Sequence[str],
    settings: EngineSettings,
    output: Path,
    screen: Screen,
    manager: TaskManager,
    num_fewshot: int | None = None,
    limit: int | None = None,
    too_long: TooLongRule = "error",
    apply_chat_template: bool = False,
) -> dict[str, Any]:
    """Evaluate a model on tasks of lm-eval into OUTPUT/harness-TASKS; shows lm-eval's table, gives the result.

    The result is one of results.py, so that `splice eval compare` takes it: a sample is a document, each a cluster of its own; the
    metrics are those that lm-eval averages over documents. All of lm-eval's own figures are under "harness".
    manager: as open_tasks gives it. num_fewshot: None is each task's own. limit: documents of each task, the first.
    Raises SpliceError for tasks that do not exist or lack a library, EvaluationFailed where memory, disk or the hub fail, and as
    SpliceLM.
    """
    names = find_tasks(tasks, manager)
    how = {"num_fewshot": num_fewshot, "limit": limit, "apply_chat_template": apply_chat_template}
    name = re.sub(r"[^\w.+-]+", "-", f"harness-{'-'.join(tasks)}").strip("-")[:100]
    plan = _plan(model, name, {"tasks": names, "too_long": too_long} | how, settings)
    directory = output / name
    with locked(directory, "evaluation"):
        samples = start(directory, plan)
        if samples is None:
            screen.say(f"{name}: finished before, in {directory}")
            return read_json(directory / RESULT)
        try:
            began = time.monotonic()
            lm = SpliceLM(model, settings, too_long)
            found = _evaluate(lm, names, manager, how)
            rows = list(_samples(found))
            metrics = list(dict.fromkeys(metric for row in rows for metric in row["scores"]))
            figures = summarise(rows, metrics, settings.seed, plan["unit"]) if metrics else NOTHING
            samples.add(rows)
        except BaseException:
            (directory / PLAN).unlink()  # nothing is kept, so other settings may have the place
            raise
        finally:
            samples.close()
        harness = {key: value for key, value in found.items() if key not in ENVIRONMENT}
        result = (
            plan
            | {"queries": len(rows), "clusters": len(rows), "truncated": lm.truncated}
            | figures
            | {"harness": json.loads(json.dumps(harness, default=handle_non_serializable, sort_keys=True))}
        )
        finish(directory, result, {"seconds": round(time.monotonic() - began, 3)})
    screen.say(make_table(found))
    if "groups" in found:
        screen.say(make_table(found, "groups"))
    if lm.truncated:
        screen.say(f"{lm.truncated:,} prompts were over the context of {lm.max_length:,} tokens and cut on the left")
    screen.say(f"{name}: {len(rows):,} documents; {directory}")
    return result


def _evaluate(lm: SpliceLM, names: list[str], manager: TaskManager, how: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's results. Its seeds stay its own: they choose the examples, and published figures are by them."""
    try:
        found = simple_evaluate(lm, tasks=names, task_manager=manager, **how)
    except torch.OutOfMemoryError as error:
        raise out_of_memory(error, "Then run it again.") from error
    except ModuleNotFoundError as error:
        raise SpliceError(f"the code of a task in {', '.join(names)} needs more than is installed: {error}") from None
    except OSError as error:  # no hub, no such file, a full disk
        raise EvaluationFailed(f"{error}. Mend it, then run it again") from error
    assert found is not None  # None is of other processes than the first
    return found


def _samples(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Of each document of each task a sample in results.py's form, without its prompt, of which a hash is kept."""
    for task, rows in found["samples"].items():
        documents: dict[int, list[Mapping[str, Any]]] = defaultdict(list)  # a row a filter of the answers
        for row in rows:
            documents[row["doc_id"]].append(row)
        averaged = _averaged(rows, found["results"][task])
        for document, filtered in documents.items():
            name, one = f"{task}/{document}", filtered[0]
            scores = {metric: value for row in filtered for metric, value in _scores(row).items()}
            sample = {
                "id": name, "group": task, "cluster": name, "item": name, "tags": {"task": task},
                "prefix": one["prompt_hash"][:16], "answers": [str(one["target"])], "document": one["doc_hash"][:16],
                "responses": one["resps"], "prediction": {row["filter"]: row["filtered_resps"] for row in filtered},
                "scores": {metric: value for metric, value in scores.items() if metric in averaged},
            }  # fmt: skip
            yield json.loads(json.dumps(sample, default=handle_non_serializable))


def _averaged(rows: Iterable[Mapping[str, Any]], reported: Mapping[str, Any]) -> set[str]:
    """The metrics whose mean over documents is what lm-eval reports; others (an F1, a perplexity) have no score a document."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in _scores(row).items():
            values[name].append(value)
    return {
        name
        for name, some in values.items()
        if isinstance(figure := reported.get(name), (int, float))
        and math.isclose(math.fsum(some) / len(some), figure, abs_tol=1e-9)
    }


def _scores(row: Mapping[str, Any]) -> dict[str, float]:
    """Of the metrics that are numbers, by the names of lm-eval's results: acc,none."""
    numbers = {metric: row[metric] for metric in row["metrics"] if isinstance(row[metric], (int, float, np.number))}
    return {f"{metric},{row['filter']}": float(value) for metric, value in numbers.items()}


def _plan(model: Model, name: str, asked: dict[str, Any], settings: EngineSettings) -> dict[str, Any]:
    """What a run is, as run.make_plan's."""
    engine = settings.model_dump(mode="json", include={"batch_tokens", "chunk", "bos", "max_context"})
    plan: dict[str, Any] = {
        "format": FORMAT,
        "task": "harness",
        "name": name,
        "model": model.facts,
        "settings": asked | engine,
        "data": [],
        "subset": f"the first {asked['limit']} documents of each task" if asked["limit"] else None,
        "seed": settings.seed,
        "scorer": "lm-evaluation-harness",
        "unit": "documents",
        "versions": {library: version(library) for library in (*LIBRARIES, "lm_eval", "datasets")},
    }
    plan["fingerprint"] = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:16]
    return plan
