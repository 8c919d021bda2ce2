"""The schedule by a counting sort: stable, without atomic additions, and the host waits for nothing.

Each block of assignments finds the rank of every one among those of its block with the same expert, by comparing all
with all, and how many of each expert it has; a sum over blocks then says where each block's first one goes. The work is
S * BLOCK comparisons whatever the number of experts.
"""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch

BLOCK = 256  # assignments a program: the comparisons grow with it, the counts [E + 1, S / BLOCK] shrink


def schedule(
    experts: Tensor, token: Tensor | None, count: int, tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See schedule.schedule. An expert that is not 0 .. count - 1 is taken for none."""
    experts = experts.contiguous()
    size = len(experts)
    blocks = max(triton.cdiv(size, BLOCK), 1)
    ranks, entries, of_slot, slot_of = (experts.new_empty(size, dtype=torch.int32) for _ in range(4))
    counts = experts.new_zeros((count + 1, blocks), dtype=torch.int32)
    grid = (triton.cdiv(size, BLOCK),)
    launch(
        rank_kernel,
        grid,
        8,
        keys=experts,
        ranks=ranks,
        counts=counts,
        size=size,
        count=count,
        blocks=blocks,
        BLOCK=BLOCK,
    )
    starts = counts.view(-1).cumsum(0, dtype=torch.int32).sub_(counts.view(-1))
    per_token = size // max(tokens, 1)
    launch(
        place_kernel,
        grid,
        keys=experts,
        ranks=ranks,
        starts=starts,
        token=experts if token is None else token.contiguous(),
        entries=entries,
        tokens=of_slot,
        slots=slot_of,
        size=size,
        count=count,
        blocks=blocks,
        per_token=per_token,
        LISTED=token is not None,
        BLOCK=BLOCK,
    )
    offsets = starts.view(count + 1, blocks)[:, 0].contiguous()
    numbers = torch.arange(tokens + 1, dtype=torch.int32, device=experts.device)
    if token is None:
        return offsets, entries, of_slot, numbers.mul_(per_token), slot_of
    keys, by_token = token.sort(stable=True)
    rows = torch.searchsorted(keys, numbers.to(keys.dtype), out_int32=True)  # bincount would wait for the device
    return offsets, entries, of_slot, rows, slot_of[by_token]


@triton.jit
def key_of(keys, entry, size, count):
    """An assignment's expert; `count` for none, and past the end of the assignments -1, which equals no other's."""
    key = tl.load(keys + entry, mask=entry < size, other=0)
    key = tl.where((key >= 0) & (key < count), key, count)
    return tl.where(entry < size, key, -1)


@triton.jit(do_not_specialize=["size", "blocks"])
def rank_kernel(keys, ranks, counts, size, count, blocks, BLOCK: tl.constexpr):
    """ranks: [size] within block and expert. counts: [count + 1, blocks], zeros before; written by each expert's last."""
    block = tl.program_id(0)
    inside = tl.arange(0, BLOCK)
    entry = block * BLOCK + inside
    key = key_of(keys, entry, size, count)
    rank = tl.zeros([BLOCK], tl.int32)
    later = tl.zeros([BLOCK], tl.int32)
    for start in range(0, BLOCK, 16):
        other = start + tl.arange(0, 16)
        same = key[:, None] == key_of(keys, block * BLOCK + other, size, count)[None, :]
        rank += tl.sum((same & (other[None, :] < inside[:, None])).to(tl.int32), 1)
        later += tl.sum((same & (other[None, :] > inside[:, None])).to(tl.int32), 1)
    tl.store(ranks + entry, rank, mask=entry < size)
    tl.store(counts + key.to(tl.int64) * blocks + block, rank + 1, mask=(entry < size) & (later == 0))


@triton.jit(do_not_specialize=["size", "blocks"])
def place_kernel(
    keys, ranks, starts, token, entries, tokens, slots, size, count, blocks, per_token,
    LISTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each assignment to its slot. token: [size], read where LISTED, else per_token assignments belong to each."""
    block = tl.program_id(0)
    entry = block * BLOCK + tl.arange(0, BLOCK)
    inside = entry < size
    key = key_of(keys, entry, size, count).to(tl.int64)
    slot = tl.load(starts + key * blocks + block, mask=inside, other=0) + tl.load(ranks + entry, mask=inside, other=0)
    if LISTED:
        owner = tl.load(token + entry, mask=inside, other=0).to(tl.int32)
    else:
        owner = entry // per_token
    tl.store(entries + slot, entry, mask=inside)
    tl.store(tokens + slot, owner, mask=inside)
    tl.store(slots + entry, slot, mask=inside)
