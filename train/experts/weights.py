"""The matrices of a layer's experts, and all of them at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..kernels import Backend, Schedule, experts, schedule
from .config import Experts

if TYPE_CHECKING:
    from .exchange import Exchange


class ExpertWeights(nn.Module):
    """E feed-forward networks of D -> F -> D. Names and shapes are those of transformers' experts.

    gate_up_proj: [E, 2F, D], the gate's rows first (swiglu), else up_proj: [E, F, D]. down_proj: [E, D, F].
    With an exchange the tensors are this rank's share of the experts.
    """

    def __init__(self, experts: Experts, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        size, self.activation, self.count = mlp_size // experts.granularity, experts.activation, experts.count
        self.backend: Backend | None = None
        self.exchange: Exchange | None = None
        self._up = "gate_up_proj" if experts.activation == "swiglu" else "up_proj"
        wide = 2 * size if experts.activation == "swiglu" else size
        self.register_parameter(self._up, nn.Parameter(torch.empty(self.count, wide, hidden_size)))
        self.down_proj = nn.Parameter(torch.empty(self.count, hidden_size, size))

    def matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Up and down in the dtype of the computation."""
        up, down = getattr(self, self._up), self.down_proj
        if self.exchange is not None:
            up, down = self.exchange.own(up), self.exchange.own(down)
        return up.to(dtype), down.to(dtype)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, token: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs [T, D] of x [T, D], and how many tokens each expert computed, int32 [E].

        chosen: int32 [S], an expert or E for none; weights: float32 [S]; token: int32 [S], see kernels.schedule.
        """
        plan = schedule(chosen, self.count, len(x), token, self.backend)
        if self.exchange is not None:
            out = self.exchange(x, weights, plan, self)
        else:
            out = self.compute(x, weights, plan)
        return out, plan.offsets.diff()

    def compute(self, x: Tensor, weights: Tensor, plan: Schedule) -> Tensor:
        return experts(x, *self.matrices(x.dtype), weights, plan, self.activation, self.backend)
