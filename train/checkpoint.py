"""Checkpoints: a run's whole state at a step, in safetensors, at any world size, there or not there.

    RUN/step-000500/weights/      float32 master weights by Hugging Face's names, a file a rank
                    optimizer/    AdamW's two moments
                    state.json    the step, what the run was told, what it was trained on, its files and their sizes
                    config.json   the model, as Hugging Face writes it; beside it the tokenizer

torch's distributed checkpoint writes and reads the tensors: each rank its own shard, any other number of ranks afterwards.
Its own format keeps a pickle; with the safetensors one nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException

from splice.errors import RESUME_TRAINING, SpliceError, TrainingFailed
from splice.files import TEMPORARY, flush, read_json

from .hf_config import config_to_hf
from .model import Llama
from .parallel import World

STATE = "state.json"
PIECE = 2**30  # bytes
_NAME = re.compile(r"step-(\d{6,})")


def save(
    run: Path,
    state: dict[str, Any],
    model: Llama,
    optimizer: torch.optim.Optimizer,
    world: World,
    keep: int,
    tokenizer: dict[str, bytes],
) -> Path:
    """Write the checkpoint of state["step"], atomically, and remove all but the last `keep` (0: none).

    tokenizer: the files of the data's, so that a checkpoint can be used by itself. Raises TrainingFailed where it cannot be
    written; nothing of it is left then.
    """
    final = run / f"step-{state['step']:06d}"
    temporary = run / f"{TEMPORARY}{final.name}"
    if world.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.wait()
    try:
        for part, tensors in (("weights", _weights(model)), ("optimizer", _moments(model, optimizer))):
            with _quietly():
                writer = HuggingFaceStorageWriter(str(temporary / part), save_distributed=True)
                dcp.save(tensors, storage_writer=writer, no_dist=world.size == 1)
    except CheckpointException as error:  # of all ranks, whichever failed
        if world.first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise TrainingFailed(f"{final}: cannot be written ({_first(error)}); make room. {RESUME_TRAINING}") from None
    world.wait()
    if world.first:
        for name, data in tokenizer.items():
            (temporary / name).write_bytes(data)
        config = config_to_hf(model.config, state["tokenizer"])
        (temporary / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        files = {str(p.relative_to(temporary)): p.stat().st_size for p in sorted(temporary.rglob("*.safetensors"))}
        (temporary / STATE).write_text(json.dumps({**state, "files": files}, indent=1) + "\n")
        for path in (*temporary.rglob("*"), temporary):
            flush(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        flush(run)
        for old in checkpoints(run)[:-keep] if keep else ():
            _remove(old)
    world.wait()
    return final


def _remove(checkpoint: Path) -> None:
    """Half a checkpoint must not count as one; what cannot be removed is left for the next start."""
    away = checkpoint.with_name(f"{TEMPORARY}{checkpoint.name}")
    with suppress(OSError):
        os.replace(checkpoint, away)
    shutil.rmtree(away, ignore_errors=True)


def sweep_run(run: Path) -> None:
    """Remove what killed attempts left of this run's own files, and nothing below."""
    for path in run.glob(f"{TEMPORARY}*"):
        if path.is_dir() and path.name.startswith(f"{TEMPORARY}step-"):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.endswith((".jsonl", ".json")):
            path.unlink(missing_ok=True)


def load(checkpoint: Path, model: Llama, optimizer: torch.optim.Optimizer, world: World) -> dict[str, Any]:
    """Put a checkpoint into a model and its optimizer, whatever world wrote it; gives its state."""
    state = read_state(checkpoint)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state["step"]), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    for part, tensors in (("weights", _weights(model)), ("optimizer", _moments(model, optimizer))):
        _read(checkpoint / part, tensors, world.size == 1)
    return state


def stored_weights(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and whole value, float32, of each weight of a checkpoint; PIECE of them at a time are in memory.

    Not one by one: torch reads the headers of all files for every piece.
    """
    read_state(checkpoint)
    directory = checkpoint / "weights"
    stored = _metadata(HuggingFaceStorageReader(str(directory)), checkpoint)
    tensors: dict[str, Tensor] = {}
    for name in sorted(stored):
        tensors[name] = torch.empty(stored[name].size, dtype=stored[name].properties.dtype)
        if sum(tensor.nbytes for tensor in tensors.values()) >= PIECE:
            yield from _whole(directory, tensors)
            tensors = {}
    yield from _whole(directory, tensors)


def _whole(directory: Path, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    if tensors:
        _read(directory, tensors, alone=True)
    yield from tensors.items()


def is_checkpoint(directory: Path) -> bool:
    return (directory / STATE).is_file()


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [(int(match[1]), path) for path in run.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint's state.json says. Raises SpliceError where it is none."""
    if not is_checkpoint(checkpoint):
        last = checkpoints(checkpoint)[-1:]
        hint = f"its last checkpoint is {last[0]}" if last else "name RUN/step-NNNNNN of a `splice train`"
        raise SpliceError(f"{checkpoint}: not a checkpoint (no {STATE}); {hint}")
    state = read_json(checkpoint / STATE)
    if not isinstance(state, dict) or not {"step", "tokens", "identity", "tokenizer", "files"} <= state.keys():
        raise _damaged(checkpoint, f"{STATE} is torn or not ours")
    for name, size in state["files"].items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            raise _damaged(checkpoint, f"{name} is " + ("not whole" if path.is_file() else "missing"))
    return state


def _damaged(checkpoint: Path, what: str) -> SpliceError:
    return SpliceError(
        f"{checkpoint}: damaged ({what}); copy it again, or remove it and --resume takes the one before it"
    )


def _weights(model: Llama) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _moments(model: Llama, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        for moment in ("exp_avg", "exp_avg_sq")
    }


def _read(directory: Path, tensors: dict[str, Tensor], alone: bool) -> None:
    reader = HuggingFaceStorageReader(str(directory))
    stored = _metadata(reader, directory.parent)
    for name, tensor in tensors.items():
        if name not in stored or stored[name].size != tensor.shape:
            has = tuple(stored[name].size) if name in stored else "nothing of that name"
            raise SpliceError(
                f"{directory}: {name} should have the shape {tuple(tensor.shape)}, the checkpoint has {has}; it was made "
                "with another model: take the settings it was made with, or another --output"
            )
    try:
        with _quietly():
            dcp.load(tensors, storage_reader=reader, no_dist=alone)
    except CheckpointException as error:
        raise _damaged(directory.parent, _first(error)) from None


def _metadata(reader: HuggingFaceStorageReader, checkpoint: Path) -> dict[str, Any]:
    try:
        return reader.read_metadata().state_dict_metadata
    except Exception as error:  # torn files fail in as many classes
        raise _damaged(checkpoint, str(error)) from None


def _first(error: CheckpointException) -> str:
    """Why, in a line: torch wraps what happened on each rank."""
    cause = next(iter(error.failures.values()))[0]
    return str(cause).strip().splitlines()[0] or type(cause).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warning that one process is alone, which it was told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
