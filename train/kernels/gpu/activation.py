"""The activations of experts and their slopes, in float32 registers."""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate(gate, value, ACTIVATION: tl.constexpr):
    """A of H: gate and value are its two halves for swiglu; the others read gate alone."""
    if ACTIVATION == "swiglu":
        a = gate * tl.sigmoid(gate) * value
    elif ACTIVATION == "relu":
        a = tl.maximum(gate, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        a = gate * 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    return a


@triton.jit
def slopes(gate, value, ACTIVATION: tl.constexpr):
    """dA/dgate and dA/dvalue."""
    if ACTIVATION == "swiglu":
        share = tl.sigmoid(gate)
        to_gate = value * share * (1 + gate * (1 - share))
        to_value = gate * share
    elif ACTIVATION == "relu":
        to_gate = tl.where(gate > 0, 1.0, 0.0)
        to_value = gate
    else:
        below = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))  # the normal distribution, then its density
        to_gate = below + gate * tl.exp(-0.5 * gate * gate) * 0.3989422804014327
        to_value = gate
    return to_gate, to_value
