"""The linear map that scores experts, always in float32."""

from __future__ import annotations

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
        x = x.float()
        if jitter and self.training:
            x = x * torch.empty_like(x).uniform_(1 - jitter, 1 + jitter)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, self.weight.float())
