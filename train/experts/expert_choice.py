"""Expert choice: each expert takes the tokens that like it best (Zhou et al. 2022, arXiv:2202.09368).

Over a sequence that would let an expert's choice depend on tokens to come. Here it chooses among the tokens at one position
of `group` different sequences, so that a token's output depends on what is at its own position or before, never behind.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import Experts
from .record import Record
from .router import Router
from .weights import ExpertWeights


class ExpertChoice(nn.Module):
    """Softmax over experts, then each expert takes its best group k / E tokens of each group, by that probability.

    A LayerNorm on the output, without which fine granularity does not train (Krajewski et al. 2024, appendix).
    """

    def __init__(self, experts: Experts, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.config = experts
        self.gate = Router(experts.count, hidden_size)
        self.experts = ExpertWeights(experts, hidden_size, mlp_size)
        self.norm = LayerNorm(hidden_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Record]:
        """x: [B, T, D], B a multiple of the group."""
        config = self.config
        b, t, _ = x.shape
        g, e = config.group, config.count
        flat = x.flatten(0, 1)  # [B T, D]
        shares = self.gate(flat).softmax(-1)
        each = g * config.active // e  # tokens that an expert takes of a group
        # [B/g groups of rows, g, T, E] -> the best of dim 1
        grouped = shares.view(b // g, g, t, e)
        rows = (
            grouped.detach().sort(dim=1, descending=True, stable=True).indices[:, :each].clone()
        )  # and the rest is gone
        weights = grouped.gather(1, rows)
        first = torch.arange(0, b, g, device=x.device)[:, None, None, None]
        token = (first + rows) * t + torch.arange(t, device=x.device)[:, None]  # [B/g, each, T, E]
        chosen = torch.arange(e, device=x.device, dtype=torch.int32).expand(token.shape)
        out, load = self.experts(flat, chosen.reshape(-1), weights.reshape(-1), token.int().reshape(-1))
        taken = torch.zeros(len(flat), device=x.device).index_fill(0, token.reshape(-1), 1.0)
        zero = load.new_zeros((), dtype=torch.float32)
        record = Record(
            loss=zero,
            load=load.float(),
            dropped=len(flat) - taken.sum(),
            assigned=zero + len(flat),
            entropy=torch.special.entr(shares.detach()).sum(-1).mean(),
            balance=zero,
            z=zero,
        )
        return self.norm(out).view_as(x), record


class LayerNorm(nn.LayerNorm):
    """Weights stay float32; computed in the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(
            x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
        )
