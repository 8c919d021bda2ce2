"""experts.jsonl: what the expert layers of a run did, a line now and then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splice.errors import SpliceError

from .lines import LinesFile, corrupt, read_lines

EXPERTS = "experts.jsonl"


class ExpertsFile(LinesFile):
    """experts.jsonl in `directory`: {"step": n, "layers": {"0": {"load": [tokens of each expert], "dropped": ..}, ..}}."""

    def __init__(self, directory: Path, first_step: int) -> None:
        super().__init__(directory / EXPERTS, first_step)

    def experts(self, step: int, layers: dict[int, dict[str, Any]]) -> None:
        self.write({"step": step, "layers": layers})


@dataclass(frozen=True)
class ExpertLoads:
    """A run's experts.jsonl: n lines of L expert layers, whose numbers are `layers`, of E experts each.

    step: int64 [n]. load: float64 [n, L, E], tokens that each expert computed. dropped: float64 [n, L], share of the
    assignments. entropy: float64 [n, L], of the router, nats. dead: int64 [n, L], experts that computed nothing. nan where
    the file has null.
    """

    step: np.ndarray
    layers: tuple[int, ...]
    load: np.ndarray
    dropped: np.ndarray
    entropy: np.ndarray
    dead: np.ndarray


def read_experts(run: Path) -> ExpertLoads | None:
    """What the expert layers of a run did, going on or finished; None without experts.jsonl, or with no line in it yet.

    A torn last line is left out. Raises SpliceError for a line that is not one of this log, or is of other layers or
    another number of experts than the first.
    """
    path = run / EXPERTS
    if not path.is_file():
        return None
    found: list[ExpertLoads] = []
    for number, (_, record) in enumerate(read_lines(path), 1):
        try:
            line = _one(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise corrupt(path, number, f"{type(error).__name__}: {error}") from None
        if found and _model(line) != _model(found[0]):
            raise SpliceError(
                f"{path}:{number}: {_model(line)}, but {_model(found[0])} before; delete the lines of one of the two models"
            )
        found.append(line)
    if not found:
        return None
    arrays = ("step", "load", "dropped", "entropy", "dead")
    joined = {name: np.concatenate([getattr(line, name) for line in found]) for name in arrays}
    return ExpertLoads(layers=found[0].layers, **joined)


def _one(record: dict[str, Any]) -> ExpertLoads:
    """A line, n = 1."""
    layers = {int(layer): told for layer, told in record["layers"].items()}
    ordered = [layers[layer] for layer in sorted(layers)]
    sizes = {len(told["load"]) for told in ordered}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError("layers without experts, or of different numbers of them")
    return ExpertLoads(
        step=np.array([record["step"]], np.int64),
        layers=tuple(sorted(layers)),
        **{name: np.array([[told[name] for told in ordered]], np.float64) for name in ("load", "dropped", "entropy")},
        dead=np.array([[told["dead"] for told in ordered]], np.int64),
    )


def _model(line: ExpertLoads) -> str:
    return f"{line.load.shape[-1]} experts in layers {', '.join(map(str, line.layers))}"
