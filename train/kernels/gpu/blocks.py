"""How large a tile a program computes, with how many warps and stages: a table, and measuring instead where asked to.

The table is all there is unless `tuning(True)`: the same shapes then take the same sizes on every machine, and so give
the same bits. When tuning, the first use of a shape times up to CANDIDATES sizes around the table's own on the real
arguments, and the best is kept for other processes, in a file of the device and Triton's version.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from ....files import read_json, write_json
from .launch import is_noting

CANDIDATES = 8
SHARED = 227 * 1024  # bytes of shared memory a program can have on Hopper; elsewhere what does not fit is passed over


@dataclass(frozen=True)
class Blocks:
    """A tile of m x n, made from k at a time. outer.py: k are rows of an expert, elsewhere m are."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


# By kernel and bytes of an element: sizes for experts of up to so many rows on average, the last for all above.
# From 64 rows on a tile is what Hopper's matrix instruction takes at least; below, reading the weights is the work.
# Two programs of most of these fit on a multiprocessor (registers, and 96 KiB of shared memory each), so that one can
# compute while another begins or ends: sums are short where experts are small.
TABLE: dict[tuple[str, int], list[tuple[float, Blocks]]] = {
    ("up gated", 2): [
        (16, Blocks(16, 32, 128, 4, 4)),
        (32, Blocks(32, 32, 128, 4, 3)),
        (192, Blocks(64, 64, 64, 4, 3)),
        (float("inf"), Blocks(128, 64, 64, 8, 3)),
    ],
    ("up", 2): [
        (16, Blocks(16, 64, 128, 4, 4)),
        (32, Blocks(32, 64, 128, 4, 3)),
        (192, Blocks(64, 128, 64, 4, 3)),
        (float("inf"), Blocks(128, 128, 64, 8, 3)),
    ],
    ("product", 2): [
        (16, Blocks(16, 64, 128, 4, 4)),
        (32, Blocks(32, 64, 128, 4, 3)),
        (192, Blocks(64, 128, 64, 4, 3)),
        (float("inf"), Blocks(128, 128, 64, 8, 3)),
    ],
    ("slope gated", 2): [
        (16, Blocks(16, 64, 128, 4, 4)),
        (32, Blocks(32, 64, 128, 4, 3)),
        (192, Blocks(64, 64, 64, 4, 3)),
        (float("inf"), Blocks(128, 128, 64, 8, 3)),
    ],
    ("slope", 2): [
        (16, Blocks(16, 64, 128, 4, 4)),
        (32, Blocks(32, 64, 128, 4, 3)),
        (192, Blocks(64, 128, 64, 4, 3)),
        (float("inf"), Blocks(128, 128, 64, 8, 3)),
    ],
    ("outer", 2): [
        (32, Blocks(128, 64, 32, 4, 3)),
        (float("inf"), Blocks(128, 128, 64, 8, 3)),
    ],
} | {  # no matrix instruction computes float32 exactly
    (kernel, 4): [(16, Blocks(16, 32, 32, 4, 2)), (float("inf"), Blocks(32, 64 if kernel in ("up", "product") else 32, 32, 4, 2))]
    for kernel in ("up gated", "up", "product", "slope gated", "slope", "outer")
}  # fmt: skip


def default(kernel: str, size: int, rows: int, n: int, depth: int) -> Blocks:
    """The table's blocks for elements of `size` bytes, experts of `rows` rows, n columns and sums over `depth`.

    Made smaller where a matrix is, or where otherwise more than an eighth of the tiles would be padding. For "outer"
    depth is the other side of the matrix: its sums are over rows.
    """
    b = next(blocks for most, blocks in TABLE[kernel, size] if rows <= most)
    if kernel == "outer":
        return replace(b, m=_fit(b.m, depth), n=_fit(b.n, n))
    return replace(b, n=_fit(b.n, n), k=_fit(b.k, depth))


def _fit(block: int, length: int) -> int:
    block = max(16, min(block, triton.next_power_of_2(length)))
    least = 32 if length % 32 == 0 else 64
    while block > least and 8 * (triton.cdiv(length, block) * block - length) > length:
        block //= 2
    return block


_on = False
_best: dict[str, Blocks] = {}
_read: set[Path] = set()


class tuning:
    """tuning(True): from here on blocks are measured (on CUDA alone), or taken from what was measured before, by whomever.

    As a context manager: within. Measuring waits for the device, and happens once for a shape, at its first use. Two runs
    agree to the bit if they take the same blocks: those of one file do.
    """

    def __init__(self, on: bool = True) -> None:
        global _on
        self._before, _on = _on, on

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global _on
        _on = self._before


def with_blocks(
    kernel: str, tensor: Tensor, rows: int, shape: tuple[int, int], gated: bool, start: Callable[[Blocks], Any]
) -> Any:
    """start(blocks), with the blocks for `kernel` on tensors like `tensor`; shape: (n, depth) of `default`.

    start: gives the same whenever called, but for rounding, so that it can be timed.
    """
    name = f"{kernel} gated" if gated and kernel != "outer" else kernel
    case = (name, tensor.element_size(), triton.next_power_of_2(rows), *shape)
    if _on and tensor.is_cuda and not is_noting():
        with torch.cuda.device_of(tensor):
            return start(_measured(case, start))
    return start(default(name, tensor.element_size(), rows, *shape))


def _measured(case: tuple[str, int, int, int, int], start: Callable[[Blocks], Any]) -> Blocks:
    file = cache_file(torch.cuda.get_device_name())
    key = f"{file.name}/" + "/".join(map(str, case))
    if file not in _read:
        _read.add(file)
        _best.update({f"{file.name}/{at}": b for at, b in load(file).items() if f"{file.name}/{at}" not in _best})
    allowed = candidates(*case)
    if _best.get(key) not in allowed:  # None, or what an older table's candidates were
        _best[key] = fastest(allowed, start)
        store(file, key.removeprefix(f"{file.name}/"), _best[key])
    return _best[key]


def fastest(allowed: list[Blocks], start: Callable[[Blocks], Any]) -> Blocks:
    """By the median time of `start`; the first, the table's own, where none of the others compiles and fits."""
    times = {}
    for b in allowed:
        try:
            times[b] = triton.testing.do_bench(lambda b=b: start(b), warmup=5, rep=20, return_mode="median")
        except (triton.runtime.errors.OutOfResources, triton.runtime.errors.PTXASError, triton.CompilationError):
            continue
    return min(times, key=times.__getitem__, default=allowed[0])


def candidates(kernel: str, size: int, rows: int, n: int, depth: int) -> list[Blocks]:
    """The table's blocks first, then up to CANDIDATES - 1 that differ in one or two ways and fit in shared memory."""
    own = default(kernel, size, rows, n, depth)
    tall, wide = replace(own, m=2 * own.m), replace(own, n=2 * own.n)
    changed = [
        replace(own, stages=own.stages + 1),
        wide,
        replace(wide, warps=8),
        replace(own, m=max(own.m // 2, 16), warps=4),
        replace(own, n=max(own.n // 2, 16), warps=4),
        replace(own, warps=12 - own.warps),
        replace(own, k=max(own.k // 2, 16), stages=own.stages + 1),
        replace(tall, warps=8),
    ]
    found = [own]
    for b in changed:
        sane = b.m <= 128 and b.n <= 256 and b.k <= 128 and b.m * b.n <= 128 * 256
        if sane and b not in found and shared_bytes(kernel, size, b) <= SHARED:
            found.append(b)
    return found[:CANDIDATES]


def shared_bytes(kernel: str, size: int, b: Blocks) -> int:
    """What the stages hold of both operands."""
    return b.stages * b.k * (b.m + b.n * (2 if kernel == "up gated" else 1)) * size


def cache_file(device: str) -> Path:
    """$XDG_CACHE_HOME or ~/.cache, splice/blocks-DEVICE-TRITON.json"""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "splice" / f"blocks-{device.replace(' ', '-').replace('/', '-')}-{triton.__version__}.json"


def load(file: Path) -> dict[str, Blocks]:
    """What was measured; nothing of a file that is absent, torn or not to be read."""
    try:
        found = read_json(file)
    except OSError:
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {key: Blocks(*value) for key, value in entries if _is_blocks(value)}


def _is_blocks(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 5 and all(type(number) is int and number > 0 for number in value)


def store(file: Path, key: str, blocks: Blocks) -> None:
    """Add to what is in the file by then. Where two processes meet, one's may be lost: it is measured again."""
    try:
        write_json(file, {at: list(astuple(b)) for at, b in ({**load(file), key: blocks}).items()})
    except OSError:  # a home that cannot be written to: this process knows
        return
