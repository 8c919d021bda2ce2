"""`experts` by torch's grouped matrix product: the same function by other means, to compare with.

Gathers tokens and keeps every intermediate; rows past the last offset are uninitialised memory, so they are masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from .plain import activate

if TYPE_CHECKING:
    from .schedule import Schedule


def experts_by_grouped_mm(
    x: Tensor, up: Tensor, down: Tensor, weights: Tensor, plan: Schedule, activation: str
) -> Tensor:
    """As experts.experts; sums are made in the order of slots, by atomic additions on CUDA."""
    ends = plan.offsets[1:]
    computed = (plan.slots.new_ones(len(plan.slots)).cumsum(0) <= ends[-1])[:, None]
    rows = x[plan.tokens].where(computed, 0)  # masked, so that its gradient is
    h = F.grouped_mm(rows, up.transpose(1, 2), offs=ends)
    a = activate(h.where(computed, 0), activation)
    y = F.grouped_mm(a, down.transpose(1, 2), offs=ends).where(computed, 0)
    weighted = y.float() * weights[plan.entries, None]
    return weighted.new_zeros(x.shape).index_add(0, plan.tokens, weighted).to(x.dtype)
