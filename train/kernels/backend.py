"""Which implementation computes."""

from __future__ import annotations

from typing import Literal

import torch

Backend = Literal["plain", "triton", "grouped"]


def default_backend(device: torch.device) -> Backend:
    return "triton" if device.type == "cuda" else "plain"
