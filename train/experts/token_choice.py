"""Token choice: each token goes to the k experts its router likes best (Switch, k = 1: arXiv:2101.03961; top-k)."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce

from ..kernels import route
from .config import Experts
from .record import Record
from .router import Router
from .weights import ExpertWeights


class TokenChoice(nn.Module):
    """Dropless, or in training with a capacity; what an expert has no place for goes on without it.

    Losses: balance, E <mean softmax, share of assignments>, which is 1 when all experts are equally likely; z, the mean of
    logsumexp^2 (ST-MoE, arXiv:2202.08906). context: ranks that share their rows; an expert's share of assignments
    is that of whole rows, its capacity that of a rank's tokens.
    """

    def __init__(self, experts: Experts, hidden_size: int, mlp_size: int) -> None:
        super().__init__()
        self.config = experts
        self.context: dist.ProcessGroup | None = None
        self.gate = Router(experts.count, hidden_size)
        self.experts = ExpertWeights(experts, hidden_size, mlp_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Record]:
        """x: [B, T, D]."""
        config, flat = self.config, x.flatten(0, 1)
        n = len(flat)
        routes = route(self.gate(flat, config.jitter), config.active, config.renormalise, self.experts.backend)
        chosen = routes.experts.flatten()
        wanted = None
        if config.capacity is not None and self.training:
            chosen, wanted = within_capacity(chosen, config.count, capacity(config, n))
        out, load = self.experts(flat, chosen, routes.weights.flatten())
        wanted = (load if wanted is None else wanted).float()
        if self.context is not None:
            wanted = all_reduce(wanted, "sum", self.context)
        balance = config.count * (routes.mass / n * (wanted / wanted.sum())).sum()
        z = routes.square / n
        record = Record(
            loss=config.balance * balance + config.z * z,
            load=load.float(),
            dropped=len(chosen) - load.sum().float(),
            assigned=torch.full_like(z, len(chosen), requires_grad=False),
            entropy=routes.entropy / n,
            balance=balance.detach(),
            z=z.detach(),
        )
        return out.view_as(x), record


def capacity(experts: Experts, tokens: int) -> int:
    """Assignments that an expert takes at most, of `tokens` tokens."""
    assert experts.capacity is not None
    return math.ceil(experts.capacity * tokens * experts.active / experts.count)


def within_capacity(chosen: Tensor, count: int, most: int) -> tuple[Tensor, Tensor]:
    """chosen [S] with E for whatever comes after an expert's first `most`, and how many there were of each expert, [E].

    First are the tokens that come first, whichever of their choices it is: were all first choices placed before the
    second ones, as in Switch, a later token could displace an earlier one, and tokens would feel their future.
    """
    order = chosen.sort(stable=True).indices
    starts = torch.searchsorted(chosen[order], torch.arange(count + 1, device=chosen.device, dtype=chosen.dtype))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=chosen.device)
    return torch.where(place - starts[chosen.long()] < most, chosen, count), starts.diff()
