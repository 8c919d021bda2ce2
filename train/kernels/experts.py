"""Many small feed-forward networks at once: each token through its experts, weighted and summed.

    H_s = x_t(s) W1_e(s)^T;   A_s = activation(H_s);   Y_s = A_s W2_e(s)^T;   out_t = sum of w_s Y_s over t's slots s

Of all this X, H and the schedule are kept. The gradient of a weight needs no Y: with dA'_s = dout_t W2_e it is
<dout_t, Y_s> = <dA'_s, A_s>, so that dA_s = w_s dA'_s is computed once for both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import plain
from .backend import Backend, default_backend
from .grouped import experts_by_grouped_mm
from .schedule import Schedule

ACTIVATIONS = ("swiglu", "relu", "gelu")  # gelu is the exact one, by erf


def experts(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    plan: Schedule,
    activation: str = "swiglu",
    backend: Backend | None = None,
) -> Tensor:
    """Outputs [T, D] of tokens x [T, D] in x's dtype (float32, bfloat16, float16), products accumulated in float32.

    up: [E, 2F, D] for swiglu, the F rows of the gate first, else [E, F, D]. down: [E, D, F]. Both in x's dtype.
    weights: float32 [S], one an assignment, in the order the schedule was made from.
    """
    backend = backend or default_backend(x.device)
    if backend == "grouped":
        return experts_by_grouped_mm(x, up, down, weights, plan, activation)
    return torch.ops.splice.experts(x, up, down, weights, *plan, activation, backend)[0]


@torch.library.custom_op("splice::experts", mutates_args=())
def _experts(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    offsets: Tensor,
    entries: Tensor,
    tokens: Tensor,
    rows: Tensor,
    slots: Tensor,
    activation: str,
    backend: str,
) -> tuple[Tensor, Tensor]:
    plan = Schedule(offsets, entries, tokens, rows, slots)
    if backend == "triton":
        from .gpu import experts as kernels

        return kernels.forward(x, up, down, weights, plan, activation)
    return plain.forward(x, up, down, weights, plan, activation)


@_experts.register_fake
def _(x: Tensor, up: Tensor, down: Tensor, weights: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(len(weights), up.shape[1])


@torch.library.custom_op("splice::experts_backward", mutates_args=())
def _backward(
    d_out: Tensor,
    x: Tensor,
    h: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    offsets: Tensor,
    entries: Tensor,
    tokens: Tensor,
    rows: Tensor,
    slots: Tensor,
    activation: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    plan = Schedule(offsets, entries, tokens, rows, slots)
    if backend == "triton":
        from .gpu import experts as kernels

        return kernels.backward(d_out, x, h, up, down, weights, plan, activation)
    return plain.backward(d_out, x, h, up, down, weights, plan, activation)


@_backward.register_fake
def _(
    d_out: Tensor, x: Tensor, h: Tensor, up: Tensor, down: Tensor, weights: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(up), torch.empty_like(down), torch.empty_like(weights)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.activation, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, d_out: Tensor, _: Any) -> tuple[Any, ...]:
    x, up, down, weights, *plan, h = ctx.saved_tensors
    grads = torch.ops.splice.experts_backward(
        d_out.contiguous(), x, h, up, down, weights, *plan, ctx.activation, ctx.backend
    )
    return (*grads, *[None] * 7)


_experts.register_autograd(_gradient, setup_context=_setup)
