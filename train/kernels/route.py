"""Softmax over experts and the best k of them, with what the router's losses and the log are made from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import plain
from .backend import Backend, kernels_of


class Routes(NamedTuple):
    """Of T tokens: experts int32 [T, k], best first (of equals the one of the lower number); weights float32 [T, k].

    mass: float32 [E], the sum over tokens of softmax(logits). square: the sum of logsumexp(logits)^2. entropy: the sum of
    the softmaxes' entropies, nats, without gradient. All sums are over tokens.
    """

    experts: Tensor
    weights: Tensor
    mass: Tensor
    square: Tensor
    entropy: Tensor


def route(logits: Tensor, k: int, renormalise: bool, backend: Backend | None = None) -> Routes:
    """Routes of logits float32 [T, E]. renormalise: the k probabilities of a token are divided by their sum."""
    name = kernels_of(backend, logits.device)
    return Routes(*torch.ops.splice.route(logits.contiguous(), k, renormalise, name))


@torch.library.custom_op("splice::route", mutates_args=())
def _route(logits: Tensor, k: int, renormalise: bool, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if backend == "triton":
        from .gpu import route as kernels

        return kernels.route(logits, k, renormalise)
    return plain.route(logits, k, renormalise)


@_route.register_fake
def _(logits: Tensor, k: int, renormalise: bool, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, count = logits.shape
    experts = logits.new_empty((tokens, k), dtype=torch.int32)
    return experts, logits.new_empty((tokens, k)), logits.new_empty(count), logits.new_empty(()), logits.new_empty(())


@torch.library.custom_op("splice::route_backward", mutates_args=())
def _backward(
    d_weights: Tensor,
    d_mass: Tensor,
    d_square: Tensor,
    logits: Tensor,
    experts: Tensor,
    renormalise: bool,
    backend: str,
) -> Tensor:
    if backend == "triton":
        from .gpu import route as kernels

        return kernels.backward(d_weights, d_mass, d_square, logits, experts, renormalise)
    return plain.route_backward(d_weights, d_mass, d_square, logits, experts, renormalise)


@_backward.register_fake
def _(
    d_weights: Tensor,
    d_mass: Tensor,
    d_square: Tensor,
    logits: Tensor,
    experts: Tensor,
    renormalise: bool,
    backend: str,
) -> Tensor:
    return torch.empty_like(logits)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, _, ctx.renormalise, ctx.backend = inputs
    ctx.save_for_backward(logits, output[0])
    ctx.mark_non_differentiable(output[0], output[4])


def _gradient(ctx: Any, _: Any, d_weights: Tensor, d_mass: Tensor, d_square: Tensor, __: Any) -> tuple[Any, ...]:
    logits, experts = ctx.saved_tensors
    arguments = (d_weights.contiguous(), d_mass.contiguous(), d_square, logits, experts, ctx.renormalise, ctx.backend)
    return torch.ops.splice.route_backward(*arguments), None, None, None


_route.register_autograd(_gradient, setup_context=_setup)
