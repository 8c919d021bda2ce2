"""Another model's weights as the first values of a model with experts.

A mixture of tokens that becomes token choice (transition tuning, thesis 4.4.5) has the names and shapes already: its
controller is the router. A dense model becomes slices (DSMoE): slice i of n is the i-th part of d_ff.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..model import ModelConfig

_MATRIX = re.compile(r"(model\.layers\.(\d+)\.mlp\.)(gate|up|down)_proj\.weight")


def as_first_values(
    weights: Iterable[tuple[str, Tensor]], start: ModelConfig, model: ModelConfig
) -> Iterator[tuple[str, Tensor]]:
    """The weights of `start` under the names, and in the shapes, of `model`."""
    if model.experts is None or start.experts is not None:
        yield from weights
        return
    n, half = model.experts.count, {}
    for name, value in weights:
        found = _MATRIX.fullmatch(name)
        if not found or int(found[2]) not in model.experts.layers:
            yield name, value
        elif found[3] == "down":
            yield f"{found[1]}experts.down_proj", value.unflatten(1, (n, -1)).transpose(0, 1)  # [n, D, F]
        else:
            half[name] = value.unflatten(0, (n, -1))  # [n, F, D]
            pair = [f"{found[1]}{which}_proj.weight" for which in ("gate", "up")]
            if half.keys() >= set(pair):
                yield f"{found[1]}experts.gate_up_proj", torch.cat([half.pop(part) for part in pair], dim=1)


def without_first_values(start: ModelConfig, model: ModelConfig) -> set[str]:
    """The weights of `model` that `start` has nothing for: the gates of slices."""
    if model.experts is None or start.experts is not None:
        return set()
    return {f"model.layers.{layer}.mlp.gate.weight" for layer in model.experts.layers}
