"""Checkpoints: a run's whole state at a step, in safetensors, at any world size, there or not there.

    RUN/step-000500/weights/      float32 master weights by Hugging Face's names, a file a rank
                    optimizer/    AdamW's two moments
                    state.json    the step, what the run was told, what it was trained on
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from splice.errors import SpliceError
from splice.files import TEMPORARY, flush, read_json

from .hf_config import config_to_hf
from .model import Llama
from .parallel import World

STATE = "state.json"
_NAME = re.compile(r"step-(\d{6,})")


def save(
    run: Path,
    state: dict[str, Any],
    model: Llama,
    optimizer: torch.optim.Optimizer,
    world: World,
    keep: int,
    tokenizer: Path,
) -> Path:
    """Write the checkpoint of state["step"], atomically, and remove all but the last `keep` (0: none).

    tokenizer: the directory of the data's, copied so that a checkpoint can be used by itself.
    """
    final = run / f"step-{state['step']:06d}"
    temporary = run / f"{TEMPORARY}{final.name}"
    if world.first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.wait()
    for part, tensors in (("weights", _weights(model)), ("optimizer", _moments(model, optimizer))):
        with _quietly():
            writer = HuggingFaceStorageWriter(str(temporary / part), save_distributed=True)
            dcp.save(tensors, storage_writer=writer, no_dist=world.size == 1)
    world.wait()
    if world.first:
        for path in tokenizer.iterdir():
            shutil.copyfile(path, temporary / path.name)
        (temporary / "config.json").write_text(
            json.dumps(config_to_hf(model.config, state["tokenizer"]), indent=1) + "\n"
        )
        (temporary / STATE).write_text(json.dumps(state, indent=1) + "\n")
        for path in (*temporary.rglob("*"), temporary):
            flush(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        flush(run)
        if keep:
            for old in checkpoints(run)[:-keep]:
                shutil.rmtree(old)
    world.wait()
    return final


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
    """Name and whole value, float32, of each weight of a checkpoint, one at a time."""
    read_state(checkpoint)
    reader = HuggingFaceStorageReader(str(checkpoint / "weights"))
    for name, stored in sorted(_metadata(reader, checkpoint).items()):
        tensors = {name: torch.empty(stored.size, dtype=stored.properties.dtype)}
        _read(checkpoint / "weights", tensors, alone=True)
        yield name, tensors[name]


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [(int(match[1]), path) for path in run.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint's state.json says. Raises SpliceError where it is none."""
    state = read_json(checkpoint / STATE)
    if state is None:
        last = checkpoints(checkpoint)[-1:]
        hint = f"its last checkpoint is {last[0]}" if last else "name RUN/step-NNNNNN of a `splice train`"
        raise SpliceError(f"{checkpoint}: not a checkpoint (no {STATE}); {hint}")
    return state


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
    with _quietly():
        dcp.load(tensors, storage_reader=reader, no_dist=alone)


def _metadata(reader: HuggingFaceStorageReader, checkpoint: Path) -> dict[str, Any]:
    try:
        return reader.read_metadata().state_dict_metadata
    except Exception as error:
        raise SpliceError(
            f"{checkpoint}: the checkpoint is damaged ({error}); take the one before it, or start again"
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warning that one process is alone, which it was told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
