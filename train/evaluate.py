"""Validation: loss, and loss by position, which is where a longer context shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule

from splice.store import Rows

from .attention import Sight
from .data import MicroBatch, Policy, prepare
from .experts.config import Experts
from .loss import IGNORED
from .model import Llama
from .parallel import World

BUCKETS = 8


def edges(length: int) -> list[int]:
    """Where the position buckets of a row of `length` tokens begin and end: 0, T/128, T/64 .. T/2, T."""
    doubling = [length >> shift for shift in range(BUCKETS - 1, -1, -1)]
    return [0, *sorted({edge for edge in doubling if edge > 0})]


def evaluated(rows: int, limit: int | None, experts: Experts | None) -> int:
    """How many rows an evaluation is of: whole groups, where experts choose among the rows of one."""
    count = min(rows, limit or rows)
    return count if experts is None or experts.alone else count - count % experts.group


@torch.no_grad()
def evaluate(
    model: Llama,
    rows: Rows,
    limit: int | None,
    micro: int,
    policy: Policy,
    world: World,
    sight: Callable[[MicroBatch], Sight],
) -> dict[str, Any]:
    """Mean loss (nats a token) and perplexity over the first `limit` rows, as a whole and by position of the predicting token.

    A bucket without a predicted token has loss null. The data ranks take turns, so that each makes as many forward passes.
    """
    model.eval()
    count = evaluated(len(rows), limit, model.config.experts)
    sums = torch.zeros(2, rows.length, dtype=torch.float64, device=world.device)  # loss, predicted tokens; by position
    share = rows.length // world.context_size
    mine = slice(world.context_rank * share, (world.context_rank + 1) * share)
    for first in range(0, count, micro * world.data_size):
        wanted = first + micro * world.data_rank + np.arange(micro)
        batch = prepare(rows.read(np.minimum(wanted, count - 1)), micro, policy, world).micro[0].to(world.device)
        losses = model(batch.ids, batch.targets, sight(batch), reduce=False).double()
        counted = (batch.targets != IGNORED) & torch.from_numpy(wanted < count).to(world.device)[:, None]
        sums[0, mine] += torch.where(counted, losses, 0).sum(0)
        sums[1, mine] += counted.sum(0)
    model.train()
    if isinstance(model, FSDPModule):
        model.reshard()  # a forward pass without a backward one leaves the head and the embedding whole
    loss, tokens = world.sum_(sums).tolist()
    buckets = []
    for start, end in zip(edges(rows.length)[:-1], edges(rows.length)[1:], strict=True):
        inside = sum(tokens[start:end])
        mean = sum(loss[start:end]) / inside if inside else None
        buckets.append({"from": start, "to": end, "loss": mean, "tokens": int(inside)})
    mean = sum(loss) / max(1.0, sum(tokens))
    return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "tokens": int(sum(tokens)), "by_position": buckets}
