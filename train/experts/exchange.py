"""Expert parallelism: each of P ranks holds E / P experts, and tokens travel to them and back by all-to-all.

Slots of a schedule are sorted by expert, so what goes to a rank lies together. How much that is only the devices know: the
sizes are read by the host, once a layer and pass (within a rank nothing waits for it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.tensor import DTensor

from ..kernels import Schedule, combine, gather, schedule

if TYPE_CHECKING:
    from .weights import ExpertWeights


class Exchange:
    """The ranks of one group. Each has tokens of its own, and experts that all of the group send tokens to."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.size = dist.get_world_size(group)

    def own(self, parameter: Tensor) -> Tensor:
        """This rank's experts, [E / P, ...].

        They are given the gradients of P ranks' tokens, where all other weights see one rank's: so it is divided by P here,
        and the mean over ranks that FSDP takes is the same for all.
        """
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return _Gradient.apply(local, 1 / self.size)

    @torch.compiler.disable
    def __call__(self, x: Tensor, weights: Tensor, plan: Schedule, experts: ExpertWeights) -> Tensor:
        """As experts.compute(x, weights, plan), by all experts of the group."""
        load = plan.offsets.diff()  # [E]
        theirs = torch.empty_like(load)  # [P, E / P]: what each rank sends to each of mine
        dist.all_to_all_single(theirs, load, group=self.group)
        theirs = theirs.view(self.size, -1)
        sent, got = load.view(self.size, -1).sum(1).tolist(), theirs.sum(1).tolist()
        entries = plan.entries[: sum(sent)].long()
        rows = self._exchange(gather(x, plan, sum(sent)), got, sent)
        # weights travel too: applied there, their gradient needs no unweighted output here
        given = self._exchange(weights[entries, None], got, sent).flatten()
        mine = torch.arange(theirs.shape[1], device=x.device, dtype=torch.int32).repeat(self.size)
        chosen = mine.repeat_interleave(theirs.flatten(), output_size=sum(got))
        alone = schedule(chosen, theirs.shape[1], len(rows), None, experts.backend)
        y = experts.compute(rows, given, alone)
        return combine(self._exchange(y, sent, got), plan, len(x))

    def _exchange(self, rows: Tensor, got: list[int], sent: list[int]) -> Tensor:
        """sent[p] rows go to rank p, got[p] come from it; [n, D], in the order of ranks."""
        found = all_to_all_single_autograd(rows.contiguous(), got, sent, self.group)
        return torch.ops._c10d_functional.wait_tensor(found)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.scale, None
