"""Who computes what: assignments of tokens to experts, seen from both sides (a double CSR).

Routing of every kind ends in S assignments (token, expert, weight), in an order of its own; S is known before they are, so
that nothing waits for the device. An assignment that came to nothing (dropped, below the threshold) names expert E.
Sorted by expert, assignments have slots 0 .. S - 1: the rows of what experts compute.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import plain
from .backend import Backend, kernels_of


class Schedule(NamedTuple):
    """int32 tensors. Slots from offsets[E] on are those of assignments that came to nothing; nobody computes them.

    offsets: [E + 1], expert e computes slots offsets[e] .. offsets[e + 1]. entries: [S], which assignment a slot is.
    tokens: [S], the token of a slot. rows: [T + 1] and slots: [S], token t is in the slots slots[rows[t]:rows[t + 1]].
    Slots of an expert, and of a token, are in the order of the assignments.
    """

    offsets: Tensor
    entries: Tensor
    tokens: Tensor
    rows: Tensor
    slots: Tensor


def schedule(
    experts: Tensor, count: int, tokens: int, token: Tensor | None = None, backend: Backend | None = None
) -> Schedule:
    """The schedule of assignments to experts int32 [S], of 0 .. count - 1, or count for none.

    tokens: T. token: int32 [S], the token of each assignment; without it each has S / T, one token after the other.
    No host synchronisation on CUDA; the same assignments give the same schedule, always.
    """
    name = kernels_of(backend, experts.device)
    return Schedule(*torch.ops.splice.schedule(experts.flatten(), token, count, tokens, name))


@torch.library.custom_op("splice::schedule", mutates_args=())
def _schedule(
    experts: Tensor, token: Tensor | None, count: int, tokens: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if backend == "triton":
        from .gpu import schedule as kernels

        return kernels.schedule(experts, token, count, tokens)
    return plain.schedule(experts, token, count, tokens)


@_schedule.register_fake
def _(
    experts: Tensor, token: Tensor | None, count: int, tokens: int, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sizes = (count + 1, len(experts), len(experts), tokens + 1, len(experts))
    return tuple(experts.new_empty(size, dtype=torch.int32) for size in sizes)  # type: ignore[return-value]
