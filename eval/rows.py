"""Rows of tokens that continue one prefix: each sees the prefix and itself, in one forward pass.

The rows lie end to end as one row, which any transformer takes; what they see is decided here, where attention asks. The
prefix is neither copied nor masked: attention over it and over a row are merged by their log-sum-exps.

Shapes: Q rows of S tokens, H heads, G key-value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splice.train.cache import Cache
from splice.train.merge import attend, merge


class Rows:
    """Stands in a Cache's place for a forward pass. keep: remember the rows' own keys, for tokens to come.

    Give the places of the tokens with `lay` before each pass.
    """

    def __init__(self, prefix: Cache, keep: bool = False) -> None:
        self._prefix = prefix
        self._keep = keep
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # [Q, G, s, D]

    def lay(self, depths: Tensor, mask: Tensor | None) -> None:
        """depths: int64 [Q, S], tokens between the prefix and each token. mask: bool [Q, S, s + S], what a token sees of its
        row, of which s tokens are kept; None: those before it and itself (with nothing kept)."""
        self._depths, self._mask = depths, mask

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """As Cache's: int64 [Q S]."""
        return (self._prefix.local + self._depths).flatten()

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, memory_k: Tensor | None, scale: float | None = None
    ) -> Tensor:
        """As Cache's: q [1, H, Q S, D], k and v [1, G, Q S, D]."""
        rows = len(self._depths)
        parts = [attend(q, *seen, scale=scale) for seen in self._prefix.seen(layer)]
        own_q, own_k, own_v = (x[0].unflatten(1, (rows, -1)).transpose(0, 1) for x in (q, k, v))  # [Q, H, S, D]
        if layer in self._kept:
            own_k, own_v = (torch.cat(pair, 2) for pair in zip(self._kept[layer], (own_k, own_v), strict=True))
        if self._keep:
            self._kept[layer] = (own_k, own_v)
        out, lse = attend(own_q, own_k, own_v, causal=self._mask is None, mask=self._mask, scale=scale)
        parts.append((out.transpose(0, 1).flatten(1, 2)[None], lse.transpose(0, 1).flatten(1, 2)[None]))
        return merge(parts)

    def advance(self, tokens: int) -> None:
        """As Cache's; the prefix stays where it is."""

    def select(self, rows: Tensor) -> None:
        """Go on with some of the rows: int64 [q]."""
        self._kept = {layer: (k[rows], v[rows]) for layer, (k, v) in self._kept.items()}
