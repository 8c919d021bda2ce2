"""Mixture of tokens: each expert computes one mixture of a group of tokens (Antoniak et al. 2023, arXiv:2310.15961).

A group is the tokens at one position of different sequences, so nothing leaks from the future. With groups of one token,
which is all there is when a single text is read, the mixture is the token, and every expert computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import Experts
from .record import Record
from .router import Router
from .weights import ExpertWeights


class MixtureOfTokens(nn.Module):
    """mix_e = sum over the group of w_ie x_i; out_i = sum over all experts of w_ie expert_e(mix_e); w: softmax over tokens."""

    def __init__(self, experts: Experts, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.config = experts
        self.gate = Router(experts.count, hidden_size)  # the controller
        self.experts = ExpertWeights(experts, hidden_size, mlp_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Record]:
        """x: [B, T, D], B a multiple of the group."""
        b, t, d = x.shape
        g, e = self.config.group, self.config.count
        groups = x.view(b // g, g, t, d).transpose(1, 2).reshape(-1, g, d)  # [n, g, D], n = B T / g
        logits = self.gate(groups)  # [n, g, E]
        weights = logits.softmax(1)
        mixed = torch.einsum("nge,ngd->end", weights.to(x.dtype), groups)
        own = torch.arange(e, device=x.device, dtype=torch.int32).repeat_interleave(len(groups))
        y, _ = self.experts(mixed.reshape(-1, d), own, weights.new_ones(len(own)))
        out = torch.einsum("nge,end->ngd", weights.to(x.dtype), y.view(mixed.shape))
        n = torch.full((), float(len(groups)), device=x.device)
        zero = torch.zeros_like(n)
        record = Record(
            loss=zero,
            load=n.expand(e),
            dropped=zero,
            assigned=zero + b * t,
            entropy=torch.special.entr(weights.detach()).sum(1).mean(),
            balance=zero,
            z=zero,
        )
        return out.view(b // g, t, g, d).transpose(1, 2).reshape(b, t, d), record
