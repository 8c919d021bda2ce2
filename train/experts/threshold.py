"""Experts by threshold: a dense layer in slices, each with a gate of its own (DSMoE, arXiv:2502.12455).

    p = sigmoid(x Y), slice i on where p_i > tau;   out = n / (slices on) * sum over those of slice_i(x)

In the backward pass a gate passes its gradient straight through, on or off, so that slices can come back. That gradient is
<dout, slice_i(x)>: in training all slices are computed (what the dense layer costs), those that are off with weight 0;
otherwise only those that are on. With all on the sum is the dense layer's output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import Experts
from .record import Record
from .router import Router
from .weights import ExpertWeights


class Threshold(nn.Module):
    """loss: sparsity times the L1 norm of the gates over their number, those of all layers; summed over layers, a mean."""

    def __init__(self, experts: Experts, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.config = experts
        self.gate = Router(experts.count, hidden_size)
        self.experts = ExpertWeights(experts, hidden_size, mlp_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Record]:
        """x: [B, T, D]. A token with no slice on has output 0."""
        config, flat = self.config, x.flatten(0, 1)
        shares = self.gate(flat).sigmoid()  # [B T, n]
        on = shares > config.tau
        gates = on + (shares - shares.detach())  # 0 or 1, with the gradient of p
        scale = config.count / on.sum(1, keepdim=True).clamp(min=1)
        numbers = torch.arange(config.count, device=x.device, dtype=torch.int32).expand(on.shape)
        computed = numbers if self.training and torch.is_grad_enabled() else numbers.where(on, config.count)
        out, _ = self.experts(flat, computed.flatten(), (gates * scale).flatten())
        load = on.sum(0).float()
        mean = shares.mean()
        zero = torch.zeros_like(mean, requires_grad=False)
        record = Record(
            loss=config.sparsity * mean / len(config.layers),
            load=load,
            dropped=(~on.any(1)).sum().float(),
            assigned=zero + len(flat),
            entropy=(torch.special.entr(shares) + torch.special.entr(1 - shares)).mean().detach(),
            balance=mean.detach(),
            z=zero,
        )
        return out.view_as(x), record
