"""Ulysses context parallelism (Jacobs et al. 2023, arXiv:2309.14509): ranks hold tokens, attention holds heads.

Each of P ranks has T / P tokens of every example. Around attention, all-to-all turns [B, H, T/P, D] into [B, H/P, T, D]:
every rank sees whole examples, so whatever attention does (documents, FoT's memory) works as on one rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from .attention import Sight, attention


class Ulysses:
    """The ranks of one group, which share their examples."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, memory_k: Tensor | None) -> Tensor:
        """As attention.attention, of this rank's T / P tokens: [B, H, T/P, D] in and out."""
        memory = None if memory_k is None else self._to_heads(memory_k)
        out = attention(self._to_heads(q), self._to_heads(k), self._to_heads(v), sight, memory)
        return self._to_tokens(out)

    def _to_heads(self, x: Tensor) -> Tensor:
        """[B, H, T/P, D] -> [B, H/P, T, D]. Fewer key-value heads than ranks: each is sent to several."""
        if x.shape[1] < self.size:
            x = x.repeat_interleave(self.size // x.shape[1], dim=1)
        send = x.unflatten(1, (self.size, -1)).transpose(0, 1)  # [P, B, H/P, T/P, D]
        return self._exchange(send).permute(1, 2, 0, 3, 4).flatten(2, 3)

    def _to_tokens(self, x: Tensor) -> Tensor:
        """[B, H/P, T, D] -> [B, H, T/P, D]."""
        send = x.unflatten(2, (self.size, -1)).permute(2, 0, 1, 3, 4)  # [P, B, H/P, T/P, D]
        return self._exchange(send).transpose(0, 1).flatten(1, 2)

    def _exchange(self, send: Tensor) -> Tensor:
        """Part p of dim 0 goes to rank p; what came from rank p is part p."""
        got = all_to_all_single_autograd(send.contiguous().flatten(), None, None, self.group)
        return torch.ops._c10d_functional.wait_tensor(got).view(send.shape)
