"""The experts' forward and backward pass, in kernels.

    forward    up -> H, A;  product -> Y;  combine -> out
    backward   slope -> dH, w A, sums;  product -> dX;  combine -> dx;  outer -> d_up, d_down;  sums -> d_weights

Y, A and what the backward pass makes on its way are gone when it ends; X is gathered where it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import products
from .combine import combine, to_assignments
from .outer import outer
from .tiles import Tiles

if TYPE_CHECKING:
    from ..schedule import Schedule

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def forward(
    x: Tensor, up: Tensor, down: Tensor, weights: Tensor, plan: Schedule, activation: str
) -> tuple[Tensor, Tensor]:
    """Outputs [T, D] and H [S, 2F or F], whose rows nobody computes are undefined."""
    if x.dtype not in DTYPES or up.dtype != x.dtype or down.dtype != x.dtype:
        raise ValueError(
            f"experts: x {x.dtype}, up {up.dtype}, down {down.dtype}; the Triton kernels take one of float32, bfloat16, "
            'float16 for all three; cast them, or use backend="plain"'
        )
    tiles = Tiles(plan.offsets, len(plan.entries))
    h, a = products.up(x, up, plan, tiles, activation)
    y = products.product(a, down, plan, tiles)
    return combine(y, x, plan, weights.contiguous()), h


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
    d_out, d_up, d_down = d_out.contiguous(), torch.empty_like(up), torch.empty_like(down)
    tiles = Tiles(plan.offsets, len(plan.entries))
    d_h, weighted, sums = products.slope(d_out, down, h, weights.contiguous(), plan, tiles, activation)
    outer(d_out, weighted, d_down, plan, gather="left")
    del weighted
    outer(d_h, x, d_up, plan, gather="right")
    d_x = combine(products.product(d_h, up.transpose(1, 2), plan, tiles), x, plan, None)
    return d_x, d_up, d_down, to_assignments(sums, plan)
