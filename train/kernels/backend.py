"""Which implementation computes."""

from __future__ import annotations

from typing import Literal

import torch

Backend = Literal["plain", "triton", "grouped"]


def kernels_of(backend: Backend | None, device: torch.device) -> str:
    """For what only the two have: grouped takes on each device what is usual there."""
    chosen = backend or default_backend(device)
    return default_backend(device) if chosen == "grouped" else chosen


def default_backend(device: torch.device) -> Backend:
    return "triton" if device.type == "cuda" else "plain"
