"""A model from where it lies: a checkpoint of a run, a Hugging Face directory, a name on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from splice.errors import SpliceError

from .checkpoint import checkpoints, is_checkpoint, stored_weights
from .experts.router import Router
from .hf_read import locate, read_config, read_weights
from .model import Llama, ModelConfig


def find_model(name: str) -> Path:
    """The directory that `name` means. Raises SpliceError for a run (which of its checkpoints?) and as `locate`."""
    path = Path(name)
    if is_checkpoint(path):
        return path
    found = checkpoints(path)
    if found:
        raise SpliceError(f"{name}: a run, not a checkpoint; name one of its checkpoints, such as {found[-1]}")
    return locate(name)


def weights_of(directory: Path, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Name and value, on the CPU, of each weight of a checkpoint or a Hugging Face directory."""
    return stored_weights(directory) if is_checkpoint(directory) else read_weights(directory, config)


def check_whole(directory: Path, missing: list[str]) -> None:
    """Raises SpliceError where weights that its config.json promises were not found in `directory`."""
    if missing:
        raise SpliceError(
            f"{directory}: holds no {', '.join(missing)}; it is not the model that its config.json describes"
        )


@torch.no_grad()
def load_model(directory: Path, dtype: torch.dtype, device: torch.device) -> Llama:
    """The model in `directory` for inference: its weights in `dtype` on `device`, which are read one by one."""
    config = read_config(directory)
    with torch.device("meta"):
        model = Llama(config, dtype).to(dtype)
        for module in model.modules():
            if isinstance(module, Router):
                module.float()
    model = model.to_empty(device=device).eval()
    if config.tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    parameters = dict(model.named_parameters())
    for name, value in weights_of(directory, config):
        if name in parameters:
            parameters.pop(name).copy_(value)
    check_whole(directory, list(parameters))
    return model.requires_grad_(False)
