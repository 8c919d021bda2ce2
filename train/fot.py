"""Focused Transformer (Tworkowski et al. 2023, arXiv:2307.03170): which contexts a memory layer sees.

A row is one local context of L tokens; an example of T tokens is k = T / L consecutive rows. All layers see their own row,
memory layers also earlier rows: those of the same example, and, where the range reaches further than the example,
other documents' (the negatives of its contrastive training). Keys of earlier rows carry no position of their own:
they are rotated as position 0, so that their distance to a query is the query's place in its own row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FoT:
    """layers: the memory layers, counted from 0. local_context: L, tokens. cross_batch_range: r, rows at most seen.

    last_context: at inference, tokens at the end of a prompt that keep an ordinary cache instead of the memory.
    """

    layers: tuple[int, ...]
    local_context: int = 2048
    cross_batch_range: int = 15
    last_context: int = 1024


def visible_contexts(rows: int, cross_batch_range: int, per_example: int) -> Tensor:
    """n, int64 [rows]: how many rows, itself and those just before it, a row of a micro-batch attends to.

    With r = cross_batch_range and k = per_example, the rows of an example see ever more of it, in steps that spread the
    r earlier contexts over its rows:

        step = ceil((1 + r) / max(k - 1, 1));   n_i = min((i mod k) step + 1, 1 + r, i + 1)

    and with k = 1 each row sees as far as it may: n_i = min(1 + r, i + 1). A range that an example can fill itself
    (r < k) has no negatives: n_i is at most (i mod k) + 1, which the formula alone would exceed at r = k - 1.
    """
    i = torch.arange(rows)
    place = i % per_example
    most = torch.minimum(torch.tensor(1 + cross_batch_range), i + 1)
    if cross_batch_range < per_example:
        most = torch.minimum(most, place + 1)
    if per_example == 1:
        return most
    step = -(-(1 + cross_batch_range) // (per_example - 1))
    return torch.minimum(place * step + 1, most)
