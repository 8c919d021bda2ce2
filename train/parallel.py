"""Who computes what: ranks, FSDP2 over all of them, Ulysses groups and groups that share experts within them.

    world = data ranks x context ranks; the P context ranks of a group are neighbours and share their rows
    world = replicas x expert ranks; the expert ranks of a group are neighbours and hold the experts among them

Weights are sharded over the whole world (fully_shard a block at a time), so memory falls with every GPU: experts over the
ranks of their group by number, and over the replicas by rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from splice.errors import SpliceError

from .experts.exchange import Exchange
from .experts.router import Router
from .experts.token_choice import TokenChoice
from .experts.weights import ExpertWeights
from .model import Llama
from .ulysses import Ulysses


class Everywhere(SpliceError):
    """An error that all ranks raise together, so that one of them may say it for all."""


@dataclass(frozen=True)
class World:
    """This rank among all. context_size: P, ranks that share their rows."""

    device: torch.device
    rank: int = 0
    size: int = 1
    context_size: int = 1

    @property
    def data_rank(self) -> int:
        return self.rank // self.context_size

    @property
    def data_size(self) -> int:
        return self.size // self.context_size

    @property
    def context_rank(self) -> int:
        return self.rank % self.context_size

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Iterable[float]) -> list[float]:
        """The sums over all ranks, in float64."""
        numbers = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers.tolist()

    def sum_(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """[n] of every rank, one after the other."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str, context_size: int) -> Iterator[World]:
    """The world that torchrun's environment describes (one rank without it); the process group ends with the block.

    Raises SpliceError where CUDA is asked for and absent, and for a world that P does not divide.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SpliceError(
            "device cuda: torch sees no GPU here; check nvidia-smi and the build of torch, or take --device cpu"
        )
    cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if size % context_size:
        raise SpliceError(
            f"context_parallel {context_size}: does not divide the number of processes of this run, {size}; start a multiple of "
            f"{context_size} with torchrun --nproc-per-node"
        )
    local = int(os.environ.get("LOCAL_RANK", "0"))
    where = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(where)
    if size == 1:
        yield World(where)
        return
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    # long: the first rank alone downloads, and waits for the disk at a checkpoint
    dist.init_process_group(backend, timeout=timedelta(hours=2), device_id=where if cuda else None)
    yield World(where, rank, size, context_size)
    dist.destroy_process_group()  # not after an error: it would wait for ranks that may not come


def spread(model: Llama, world: World, expert_size: int = 1) -> None:
    """Shard a model over the world, join its context ranks, and give each of `expert_size` neighbours its experts.

    Nothing to do in a world of one.
    """
    if world.size == 1:
        return
    kind = world.device.type
    if world.context_size > 1:
        mesh = init_device_mesh(kind, (world.data_size, world.context_size), mesh_dim_names=("data", "context"))
        model.ulysses = Ulysses(mesh["context"].get_group())
        for block in model.model.layers:
            block.self_attn.ulysses = model.ulysses
            if isinstance(block.mlp, TokenChoice):
                block.mlp.context = model.ulysses.group
    everyone = init_device_mesh(kind, (world.size,))
    # gradients are summed over ranks in float32, whatever the products were computed in
    policy = MixedPrecisionPolicy(param_dtype=model.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=False)
    elsewhere: set[nn.Parameter] = set()
    if expert_size > 1:
        mesh = init_device_mesh(kind, (world.size // expert_size, expert_size), mesh_dim_names=("replica", "expert"))
        exchange = Exchange(mesh["expert"].get_group())
    for block in model.model.layers:
        if isinstance(getattr(block.mlp, "gate", None), Router):
            fully_shard(block.mlp.gate, mesh=everyone, mp_policy=exact)
            if expert_size > 1:
                _share_experts(block.mlp.experts, mesh, exchange, policy)
                elsewhere |= set(block.mlp.experts.parameters())
        fully_shard(block, mesh=everyone, mp_policy=policy, ignored_params=elsewhere)
    fully_shard(model, mesh=everyone, mp_policy=policy, ignored_params=elsewhere)


def _share_experts(experts: ExpertWeights, mesh: DeviceMesh, exchange: Exchange, policy: MixedPrecisionPolicy) -> None:
    experts.exchange = exchange
    for name, parameter in list(experts.named_parameters()):
        shared = distribute_tensor(parameter.data, mesh["expert"], [Shard(0)], src_data_rank=None)
        experts.register_parameter(name, nn.Parameter(shared))
    if mesh["replica"].size() > 1:
        fully_shard(experts, mesh=mesh["replica"], mp_policy=policy, shard_placement_fn=lambda _: Shard(1))


@torch.no_grad()
def fill(parameter: Tensor, value: Tensor) -> None:
    """Set a weight, sharded or not, from its whole value, which every rank holds."""
    value = value.to(parameter.device, parameter.dtype)
    if isinstance(parameter, DTensor):
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)


def clip(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale gradients down to a norm of `limit` (0: leave them); gives the norm before, over all ranks."""
    kinds = [[p for p in kind if p.grad is not None] for kind in by_kind(parameters).values()]
    norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds if kind]
    norm = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
    if limit:
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, limit, norm)
    return float(norm)


def by_kind(parameters: Iterable[nn.Parameter]) -> dict[tuple[int, DeviceMesh | None], list[nn.Parameter]]:
    """Parameters that one fused operation can take: of as many dimensions (norms, matrices, experts), on the same mesh."""
    kinds: dict[tuple[int, DeviceMesh | None], list[nn.Parameter]] = {}
    for p in parameters:
        kinds.setdefault((p.ndim, p.device_mesh if isinstance(p, DTensor) else None), []).append(p)
    return kinds
