"""The tiles of experts' slots. Of the kernels alone: plain torch needs none."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

from splice.train.kernels.gpu.tiles import Tiles

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="test_interpreted.py runs this"),
    pytest.mark.usefixtures("no_memory_is_zero"),
]


@pytest.mark.parametrize("counts", [[5], [0, 3, 0], [16, 1, 0, 33, 15, 0], [0, 0], [1] * 40, [700, 0, 9]])
@pytest.mark.parametrize("dropped", [0, 20])
@pytest.mark.parametrize("height", [1, 16, 64])
def test_they_cover_each_experts_slots_in_order(counts, dropped, height):
    offsets = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    wanted = [
        (e, first)
        for e, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        for first in range(start, end, height)
    ]
    tiles = Tiles(offsets, sum(counts) + dropped)
    experts, firsts = tiles.of(height).tolist()
    assert len(experts) == tiles.bound(height) >= len(wanted)
    assert list(zip(experts, firsts, strict=True))[: len(wanted)] == wanted
    assert experts[len(wanted) :] == [-1] * (len(experts) - len(wanted))


def test_a_height_is_computed_once():
    tiles = Tiles(torch.tensor([0, 7], dtype=torch.int32), 7)
    assert tiles.of(16) is tiles.of(16)
    assert tiles.of(16) is not tiles.of(32)
