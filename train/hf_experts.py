"""The weights of a mixture of experts, by the names that Mixtral has on disk: each expert's matrices by themselves.

in memory, here and in transformers 5         on disk: transformers 4 and 5, vLLM
mlp.gate.weight           [E, D]              block_sparse_moe.gate.weight
mlp.experts.gate_up_proj  [E, 2F, D]          block_sparse_moe.experts.0.w1.weight, the gate, and w3, up: [F, D] each
mlp.experts.down_proj     [E, D, F]           block_sparse_moe.experts.0.w2.weight [D, F]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

GATE, GATE_UP, DOWN = ".mlp.gate.weight", ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


class Part(NamedTuple):
    """A tensor on disk. index: which part of the one in memory it is; () for all of it."""

    name: str
    index: tuple[int | slice, ...]
    shape: tuple[int, ...]


def parts(name: str, shape: tuple[int, ...]) -> list[Part]:
    """What the tensor `name` of a model is on disk: itself, unless it belongs to experts."""
    if name.endswith(GATE):
        return [Part(name.replace(".mlp.", ".block_sparse_moe."), (), shape)]
    if name.endswith(GATE_UP):
        stem, half = name.removesuffix(GATE_UP), shape[1] // 2
        matrices = {"w1": (slice(0, half),), "w3": (slice(half, None),)}
        size = (half, shape[2])
    elif name.endswith(DOWN):
        stem, matrices, size = name.removesuffix(DOWN), {"w2": ()}, shape[1:]
    else:
        return [Part(name, (), shape)]
    return [
        Part(f"{stem}.block_sparse_moe.experts.{expert}.{matrix}.weight", (expert, *rows), size)
        for expert in range(shape[0])
        for matrix, rows in matrices.items()
    ]


def split(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """A model's weights by their names on disk; views."""
    for name, tensor in weights:
        for part in parts(name, tuple(tensor.shape)):
            yield part.name, tensor[part.index]
