"""The learning rate of each step."""

from __future__ import annotations

import math

from .settings import OptimizerSettings


def learning_rate(step: int, steps: int, optimizer: OptimizerSettings) -> float:
    """Of `step` (from 0) of `steps`: linear warm-up that reaches lr at its last step, then the schedule down to end_lr.

    cosine: half a cosine over what is left. constant: lr. wsd: lr, then a line over the last `decay` share of all steps.
    """
    lr = optimizer.lr
    end = lr / 10 if optimizer.end_lr is None else optimizer.end_lr
    if step < optimizer.warmup:
        return lr * (step + 1) / optimizer.warmup
    if optimizer.schedule == "constant":
        return lr
    first = optimizer.warmup
    if optimizer.schedule == "wsd":
        first = max(first, steps - math.ceil(optimizer.decay * steps))
    done = (step - first) / max(1, steps - 1 - first)  # 0 at the first step of the decay, 1 at the last of all
    if done <= 0:
        return lr
    share = 1 - done if optimizer.schedule == "wsd" else (1 + math.cos(math.pi * done)) / 2
    return end + (lr - end) * share
