"""The kernels in plain torch: what the Triton ones compute, an expert at a time. For CPUs; also in float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from .schedule import Schedule


def route(logits: Tensor, k: int, renormalise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See route.route."""
    shares = logits.softmax(1)
    experts = (
        shares.sort(dim=1, descending=True, stable=True).indices[:, :k].contiguous()
    )  # topk's order of equals is its own
    weights = shares.gather(1, experts)
    if renormalise:
        weights = weights / weights.sum(1, keepdim=True)
    square = logits.logsumexp(1).square().sum()
    return experts.int(), weights, shares.sum(0), square, torch.special.entr(shares).sum()


def route_backward(
    d_weights: Tensor, d_mass: Tensor, d_square: Tensor, logits: Tensor, experts: Tensor, renormalise: bool
) -> Tensor:
    """The gradient of logits [T, E]."""
    shares = logits.softmax(1)
    if renormalise:
        chosen = shares.gather(1, experts.long())
        total = chosen.sum(1, keepdim=True)
        d_weights = (d_weights - (d_weights * chosen).sum(1, keepdim=True) / total) / total
    d_shares = d_mass.expand_as(shares).scatter_add(1, experts.long(), d_weights)
    through_softmax = shares * (d_shares - (shares * d_shares).sum(1, keepdim=True))
    return through_softmax + 2 * d_square * logits.logsumexp(1, keepdim=True) * shares


def schedule(
    experts: Tensor, token: Tensor | None, count: int, tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See schedule.schedule."""
    size, device = len(experts), experts.device
    numbers = torch.arange(size, dtype=torch.int32, device=device)
    entries = experts.sort(stable=True).indices.int()
    slots = torch.empty_like(entries)
    slots[entries] = numbers
    offsets = _starts(experts, count + 1)[: count + 1]
    if token is None:
        per_token = size // max(tokens, 1)
        of_slot = torch.div(entries, max(per_token, 1), rounding_mode="floor")
        return offsets, entries, of_slot, torch.arange(tokens + 1, dtype=torch.int32, device=device) * per_token, slots
    by_token = token.sort(stable=True).indices
    return offsets, entries, token[entries].int(), _starts(token, tokens), slots[by_token]


def _starts(keys: Tensor, count: int) -> Tensor:
    """Where each key's entries begin once they are sorted, int32 [count + 1]."""
    starts = torch.zeros(count + 1, dtype=torch.int32, device=keys.device)
    torch.cumsum(torch.bincount(keys, minlength=count), 0, out=starts[1:])
    return starts


def forward(
    x: Tensor, up: Tensor, down: Tensor, weights: Tensor, plan: Schedule, activation: str
) -> tuple[Tensor, Tensor]:
    """Outputs [T, D] and H [S, 2F or F], whose rows nobody computes are 0."""
    h = x.new_zeros(len(plan.entries), up.shape[1])
    total = torch.zeros_like(x, dtype=_exact(x))
    for e, slots, tokens, entries in _each(plan):
        torch.mm(x[tokens], up[e].T, out=h[slots])
        y = activate(h[slots], activation) @ down[e].T
        total.index_add_(0, tokens, y.to(total.dtype) * weights[entries, None])
    return total.to(x.dtype), h


def backward(
    d_out: Tensor,
    x: Tensor,
    h: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    plan: Schedule,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, up, down and weights."""
    exact = _exact(x)
    d_x, d_up, d_down = torch.zeros_like(x, dtype=exact), torch.zeros_like(up), torch.zeros_like(down)
    d_weights = torch.zeros_like(weights)
    for e, slots, tokens, entries in _each(plan):
        w, d_y = weights[entries, None], d_out[tokens]
        d_a = (d_y @ down[e]).to(exact)  # not weighted yet
        a, slope = _activation_and_gradient(h[slots].to(exact), d_a * w, activation)
        d_weights[entries] = (d_a * a).sum(1).to(weights.dtype)
        d_h = slope.to(x.dtype)
        torch.mm(d_y.T, (a * w).to(x.dtype), out=d_down[e])
        torch.mm(d_h.T, x[tokens], out=d_up[e])
        d_x.index_add_(0, tokens, (d_h @ up[e]).to(exact))
    return d_x.to(x.dtype), d_up, d_down, d_weights


def activate(h: Tensor, activation: str) -> Tensor:
    """[n, F] of h [n, 2F] (swiglu) or [n, F], computed in float32 at least, in h's dtype."""
    wide = h.to(_exact(h))
    if activation == "swiglu":
        gate, value = wide.chunk(2, dim=-1)
        return (F.silu(gate) * value).to(h.dtype)
    return (F.relu(wide) if activation == "relu" else F.gelu(wide)).to(h.dtype)


def _activation_and_gradient(h: Tensor, d_a: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    if activation == "swiglu":
        gate, value = h.chunk(2, dim=-1)
        share = gate.sigmoid()
        d_gate = d_a * value * share * (1 + gate * (1 - share))
        return gate * share * value, torch.cat((d_gate, d_a * gate * share), -1)
    if activation == "relu":
        return F.relu(h), d_a * (h > 0)
    below = 0.5 * (1 + torch.erf(h * 0.5**0.5))  # the normal distribution and its density
    return h * below, d_a * (below + h * torch.exp(-0.5 * h * h) * (0.5 / torch.pi) ** 0.5)


def _each(plan: Schedule) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
    """Of each expert that has any: its number, its slots, their tokens and assignments."""
    offsets = plan.offsets.tolist()
    for e, (start, end) in enumerate(pairwise(offsets)):
        if start < end:
            yield e, slice(start, end), plan.tokens[start:end], plan.entries[start:end]


def _exact(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32
