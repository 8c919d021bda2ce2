"""The linear map that scores experts, always in float32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Router(nn.Module):
    """weight: [E, D]. A mixture of tokens calls it the controller; the shape is one, so that it can become a router."""

    def __init__(self, count: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, hidden_size))

    def forward(self, x: Tensor, jitter: float = 0.0) -> Tensor:
        """Logits float32 [..., E] of x [..., D], which in training is scaled by 1 - jitter to 1 + jitter, value by value."""
        if jitter and self.training:
            x = x.float()
            x = x * torch.empty_like(x).uniform_(1 - jitter, 1 + jitter)
        with torch.autocast(x.device.type, enabled=False):
            return _Float32.apply(x, self.weight)


class _Float32(torch.autograd.Function):
    """x W^T in float32 of an x in any dtype, which is kept as it is: a copy in float32 would be twice as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        d_weight = grad.flatten(0, -2).T @ x.flatten(0, -2).float()
        return (grad @ weight.float()).to(x.dtype), d_weight.to(weight.dtype)
