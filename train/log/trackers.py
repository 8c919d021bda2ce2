"""The same figures for tensorboard and for Weights & Biases, where they are asked for."""

from __future__ import annotations

import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from splice.errors import SpliceError
from splice.files import read_json, write_json

from .metrics import METRICS
from .sink import Sink

TENSORBOARD = "tensorboard"  # directory, in the run's own
WANDB = "wandb.json"  # which run of wandb this is, so that a resumed run goes on there


class TensorBoard(Sink):
    """Event files in `directory`, through torch.utils.tensorboard. A resumed run hides what the first wrote later."""

    def __init__(self, directory: Path, first_step: int) -> None:
        _require("tensorboard")
        self._directory = directory
        self._purge = first_step + 1 if first_step else 0

    def __enter__(self) -> TensorBoard:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(self._directory), purge_step=self._purge)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def step(self, record: dict[str, Any]) -> None:
        for name, value in _train_scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def validation(self, step: int, result: dict[str, Any]) -> None:
        for name, value in _validation_scalars(result).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def experts(self, step: int, layers: dict[int, dict[str, Any]]) -> None:
        for name, value in _expert_scalars(layers).items():
            self._writer.add_scalar(name, value, step)


class WeightsAndBiases(Sink):
    """A run of wandb's `project`, the same one when the run is resumed. Where to and as whom is wandb's own business."""

    def __init__(self, directory: Path, project: str, first_step: int, settings: dict[str, Any]) -> None:
        _require("wandb")
        self._directory = directory
        self._project = project
        self._settings = settings
        self._resumed = first_step > 0

    def __enter__(self) -> WeightsAndBiases:
        import wandb

        try:
            self._run: Any = wandb.init(
                project=self._project,
                id=self._id(),
                name=self._directory.resolve().name,
                config=self._settings,
                dir=str(self._directory),
                resume="allow",
                settings=wandb.Settings(silent=True),
            )
        except Exception as error:  # its own words are left out: they may quote a key
            raise SpliceError(
                f"wandb: no run could be started ({type(error).__name__}); run `wandb login`, set WANDB_MODE=offline to "
                "send it later, or leave wandb out"
            ) from None
        self._from = self._run.step  # earlier steps are there, and equal: wandb takes none twice
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)

    def step(self, record: dict[str, Any]) -> None:
        self._log(record["step"], _train_scalars(record))

    def validation(self, step: int, result: dict[str, Any]) -> None:
        self._log(step, _validation_scalars(result))

    def experts(self, step: int, layers: dict[int, dict[str, Any]]) -> None:
        self._log(step, _expert_scalars(layers))

    def _log(self, step: int, scalars: dict[str, float]) -> None:
        if step >= self._from:
            self._run.log(scalars, step=step)

    def _id(self) -> str:
        """The run's id with wandb: kept in the run's directory, and a fresh one for a run that begins anew."""
        path = self._directory / WANDB
        kept = read_json(path) if self._resumed else None
        if isinstance(kept, dict) and kept.get("project") == self._project:
            return str(kept["id"])
        fresh = secrets.token_hex(8)
        write_json(path, {"project": self._project, "id": fresh})
        return fresh


def _train_scalars(record: dict[str, Any]) -> dict[str, float]:
    return {f"train/{name}": value for name, value in record.items() if name != "step" and _is_number(value)}


def _validation_scalars(result: dict[str, Any]) -> dict[str, float]:
    scalars = {f"validation/{name}": value for name, value in result.items() if _is_number(value)}
    for bucket in result.get("by_position") or ():
        scalars[f"validation_loss_by_position/{bucket['from']}-{bucket['to']}"] = bucket["loss"]
    return {name: value for name, value in scalars.items() if value is not None}


def _expert_scalars(layers: dict[int, dict[str, Any]]) -> dict[str, float]:
    """A figure's layers in one group; of the loads only the extremes, over their mean."""
    scalars = {}
    for layer, told in layers.items():
        mean = sum(told["load"]) / len(told["load"])
        figures = {name: told[name] for name in ("dropped", "entropy", "dead")}
        if mean:
            figures |= {"heaviest": max(told["load"]) / mean, "lightest": min(told["load"]) / mean}
        scalars |= {f"expert_{name}/layer_{layer}": value for name, value in figures.items()}
    return scalars


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def require_trackers(tensorboard: bool, wandb: str | None) -> None:
    """Raise SpliceError where one is asked for and not installed: before a run begins, not at its first step."""
    if tensorboard:
        _require("tensorboard")
    if wandb is not None:
        _require("wandb")


def _require(package: str) -> None:
    """Raise SpliceError where a package that was asked for is not installed."""
    if find_spec(package) is None:
        raise SpliceError(
            f"{package}: asked for and not installed; pip install {package}, or leave it out: {METRICS} has the same numbers"
        )
