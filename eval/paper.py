"""A file of evaluations: which tasks, with which settings.

defaults: {seed: 0, sets: 20}
runs:
  - {task: kv, mode: litm, pairs: [75, 140, 300]}
  - {task: trec, context: [16384, 32768], sets: 50}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splice.errors import SpliceError
from splice.settings import read_config

from .settings import make
from .task import Task
from .tasks import TASKS


def read_runs(path: Path, only: str | None, data_dir: Path | None) -> list[tuple[Task, Any]]:
    """The tasks of a file with their settings. A default that a task does not have is left out for it.

    Raises SpliceError for a file that cannot be read, a task or a setting that does not exist.
    """
    values = read_config(path, "name a YAML file of runs")
    unknown = set(values) - {"runs", "defaults"}
    if unknown or not isinstance(values.get("runs"), list):
        what = f"no such key: {', '.join(sorted(unknown))}" if unknown else "no list of `runs`"
        raise SpliceError(f"{path}: {what}; it has `runs`, each with a `task`, and may have `defaults`")
    wanted = {name.strip() for name in only.split(",")} if only else set(TASKS)
    if wanted - set(TASKS):
        raise SpliceError(f"--only: no task {', '.join(sorted(wanted - set(TASKS)))}; there are {', '.join(TASKS)}")
    defaults = values.get("defaults") or {}
    known = {name for task in TASKS.values() for name in task.settings.model_fields}
    if set(defaults) - known:
        raise SpliceError(f"{path}: defaults: no task has a setting {', '.join(sorted(set(defaults) - known))}")
    runs = []
    for number, run in enumerate(values["runs"], 1):
        where = f"{path}: run {number}"
        name = run.get("task") if isinstance(run, dict) else None
        if name not in TASKS:
            raise SpliceError(f"{where}: task {name!r} is none of {', '.join(TASKS)}")
        if name not in wanted:
            continue
        task = TASKS[name]
        fitting = {key: value for key, value in defaults.items() if key in task.settings.model_fields}
        given = {key.replace("-", "_"): value for key, value in run.items() if key != "task"}
        if data_dir is not None:
            given["data_dir"] = data_dir
        runs.append((task, make(task.settings, fitting | given, where)))
    if not runs:
        raise SpliceError(f"{path}: no run of {', '.join(sorted(wanted))} in it")
    return runs
