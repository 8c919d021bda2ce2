"""Starting a kernel; or noting what would be started, for compile.py, which has no GPU to start it on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_notes: list[Launch] | None = None


@dataclass(frozen=True)
class Launch:
    """One start of a kernel: `arguments` are its tensors, numbers and constants by name."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    warps: int
    stages: int


def launch(kernel: Any, grid: tuple[int, ...], warps: int = 4, stages: int = 1, **arguments: Any) -> None:
    """Start `kernel` on the device of its tensors; nothing where the grid is empty."""
    if _notes is not None:
        _notes.append(Launch(kernel, grid, arguments, warps, stages))
    elif 0 not in grid:
        tensor = next(value for value in arguments.values() if isinstance(value, Tensor))
        with torch.cuda.device_of(tensor):  # Triton starts on the current device, whatever its arguments say
            kernel[grid](**arguments, **options(warps, stages))


def options(warps: int, stages: int) -> dict[str, Any]:
    """What the compiler is told; a fused multiply-add is said to be wanted, as Triton's versions differ in that."""
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


@contextmanager
def noting() -> Iterator[list[Launch]]:
    """Within, kernels are noted in the list that is given instead of started; for tensors on the device "meta"."""
    global _notes
    before, _notes = _notes, []
    try:
        yield _notes
    finally:
        _notes = before


def is_noting() -> bool:
    return _notes is not None
