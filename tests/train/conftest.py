"""Literal references for the trainer: the formulas of FoT, attention, RoPE and a Llama with no thought of speed.

All in plain torch, float64 where the inputs are, so that autograd gives the reference gradients too. Tokens of a
micro-batch are laid end to end, N = B T; a query sees rotated keys (`local`) and keys at position 0 (`raw`).
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

try:
    import torch
except ModuleNotFoundError:  # the core install: nothing here can run
    collect_ignore_glob = ["*"]


def visible(rows, r, k):
    """n_i of every row, and the deviation that `visible_contexts` documents: r < k sees its own example only."""
    out = []
    for i in range(rows):
        if k == 1:
            n = min(1 + r, i + 1)
        else:
            n = min((i % k) * math.ceil((1 + r) / max(k - 1, 1)) + 1, 1 + r, i + 1)
        out.append(min(n, i % k + 1) if r < k else n)
    return out


def masks(n, context, seen=None, documents=None):
    """bool [N, 2 N]: FoT's formula over keys [rotated | at position 0]; seen is n_i by context, None sees no memory."""
    out = torch.zeros(n, 2 * n, dtype=torch.bool)
    for q in range(n):
        for k in range(n):
            rows, own = q // context - k // context, documents is None or documents[q] == documents[k]
            out[q, k] = rows == 0 and k <= q and own
            out[q, n + k] = seen is not None and 0 < rows < seen[q // context] and own
    return out


def masked_attention(q, k, v, raw, mask):
    """One softmax over [rotated | raw] keys under a mask [N, 2 N]; q [H, N, D], k, v, raw [G, N, D] -> [H, N, D]."""
    k, v, raw = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v, raw))
    scores = q @ torch.cat((k, raw), 1).transpose(1, 2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ torch.cat((v, v), 1)


def attention_by_query(q, k, v, raw, context, seen, documents=None):
    """The same as one softmax a query: its own context up to itself, then the n_i - 1 contexts before, nearest first."""
    k, v, raw = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v, raw))
    rows = []
    for i in range(q.shape[1]):
        row = i // context
        local = list(range(row * context, i + 1))
        memory = [j for back in range(1, seen[row]) for j in range((row - back) * context, (row - back + 1) * context)]
        if documents is not None:
            local, memory = ([j for j in js if documents[j] == documents[i]] for js in (local, memory))
        keys, values = torch.cat((k[:, local], raw[:, memory]), 1), v[:, local + memory]
        scores = (keys * q[:, i, None]).sum(-1) / math.sqrt(q.shape[-1])  # [H, keys]
        rows.append((scores.softmax(-1)[..., None] * values).sum(1))
    return torch.stack(rows, 1)


def turn(x, positions, rope):
    """RoPE of x [..., N, D] as multiplication by complex numbers: the two halves of D are real and imaginary parts."""
    half = x.shape[-1] // 2
    i = torch.arange(half, dtype=torch.float64)
    inverse, factor = rope.theta ** (-i / half), 1.0
    if rope.type == "yarn":

        def dim(turns):
            return half * math.log(rope.original / (2 * math.pi * turns)) / math.log(rope.theta)

        low, high = max(math.floor(dim(32)), 0), min(math.ceil(dim(1)), 2 * half - 1)
        ramp = ((i - low) / (high + 0.001 * (low == high) - low)).clip(0, 1)
        inverse, factor = inverse / rope.factor * ramp + inverse * (1 - ramp), 0.1 * math.log(rope.factor) + 1
    wheel = torch.polar(torch.full((len(positions), half), factor, dtype=torch.float64), positions[:, None] * inverse)
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * wheel
    return torch.cat((turned.real, turned.imag), -1)


def llama(config, weights, ids, positions, mask):
    """Logits [N, V] of ids [N]: layers see `mask`'s rotated keys, memory layers its keys at position 0 as well."""

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weights[name + ".weight"]

    def linear(x, name):
        return x @ weights[name + ".weight"].T

    n = len(ids)
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config.layers):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm")
        q, k, v = (
            linear(h, f"{at}self_attn.{name}_proj").view(n, -1, config.head_size).transpose(0, 1) for name in "qkv"
        )
        seen = mask.clone()
        if not (config.fot and layer in config.fot.layers):
            seen[:, n:] = False
        zero = torch.zeros_like(positions)
        out = masked_attention(turn(q, positions, config.rope), turn(k, positions, config.rope), v,
                               turn(k, zero, config.rope), seen)  # fmt: skip
        x = x + linear(out.transpose(0, 1).flatten(1), at + "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        gate = linear(h, at + "mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(h, at + "mlp.up_proj"), at + "mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def randomised(model, seed=0):
    """Weights under which every layer matters: products keep their input's scale, norms are not 1."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
            if name.endswith("norm.weight"):
                noise = 1 + 0.2 * noise
            elif "embed" not in name:
                noise = noise / math.sqrt(weight.shape[-1])
            weight.copy_(noise)
    return model


def agree(got, wanted, tolerance):
    """Assert that the largest difference is below `tolerance` times the largest value."""
    assert got.shape == wanted.shape
    worst, scale = (got.double() - wanted.double()).abs().max().item(), wanted.double().abs().max().item()
    assert worst <= tolerance * scale, f"differs by {worst:.2e} where values reach {scale:.2e}"


@pytest.fixture(scope="session")
def literal():
    return SimpleNamespace(
        visible=visible,
        masks=masks,
        masked_attention=masked_attention,
        attention_by_query=attention_by_query,
        turn=turn,
        llama=llama,
    )


@pytest.fixture(scope="session", name="randomised")
def _randomised():
    return randomised


@pytest.fixture(scope="session", name="agree")
def _agree():
    return agree


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Sizes are too small to share out, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
