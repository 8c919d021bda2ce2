"""Which rows a program computes: the slots of every expert cut into tiles, found on the device."""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import launch


class Tiles:
    """Tiles of each expert's slots, for every height that is asked for.

    How many there are is known to the device alone. The host starts as many programs as there can be at most; those
    whose tile is -1 stop at once.
    """

    def __init__(self, offsets: Tensor, slots: int) -> None:
        """offsets: int32 [E + 1]."""
        self._offsets, self._slots, self._experts = offsets, slots, len(offsets) - 1
        self._made: dict[int, Tensor] = {}

    def bound(self, height: int) -> int:
        """No more tiles than this: a tile has a row at least, and an expert one that is not full at most."""
        return min(self._slots, self._slots // height + self._experts)

    def of(self, height: int) -> Tensor:
        """int32 [2, bound]: a tile's expert, or -1, and its first slot. Tiles are in the order of slots."""
        if height not in self._made:
            bound = self.bound(height)
            tiles = self._offsets.new_empty(2, bound)
            pad = triton.next_power_of_2(self._experts + 1)
            launch(
                tiles_kernel,
                (self._experts + 1 if bound else 0,),
                offsets=self._offsets,
                tiles=tiles,
                count=self._experts,
                bound=bound,
                HEIGHT=height,
                PAD=pad,
                CHUNK=128,
            )
            self._made[height] = tiles
        return self._made[height]


@triton.jit(do_not_specialize=["bound"])
def tiles_kernel(offsets, tiles, count, bound, HEIGHT: tl.constexpr, PAD: tl.constexpr, CHUNK: tl.constexpr):
    """A program writes the tiles of one expert; the last, program E, the -1 after all of them."""
    expert = tl.program_id(0)
    every = tl.arange(0, PAD)
    start = tl.load(offsets + every, mask=every < count, other=0)
    end = tl.load(offsets + every + 1, mask=every < count, other=0)
    tall = (end - start + HEIGHT - 1) // HEIGHT
    before = tl.sum(tl.where(every < expert, tall, 0), 0)
    own = tl.sum(tl.where(every == expert, tall, 0), 0)
    first = tl.load(offsets + expert)
    name = expert
    if expert == count:
        own = bound - before
        name = -1
    for i in range(0, own, CHUNK):
        nth = i + tl.arange(0, CHUNK)
        tl.store(tiles + before + nth, name, mask=nth < own)
        tl.store(tiles + bound + before + nth, first + nth * HEIGHT, mask=nth < own)


@triton.jit
def place(program, rows, columns, GROUP: tl.constexpr):
    """(row, column) of a program in a grid of rows x columns: GROUP rows go through all columns together.

    Programs that run at the same time then share both the rows they read and the weights, in the L2 cache.
    """
    group = program // (GROUP * columns)
    height = min(rows - group * GROUP, GROUP)
    within = program % (GROUP * columns)
    return group * GROUP + within % height, within // height
