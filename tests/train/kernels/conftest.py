"""What kernels must compute, written as loops over tokens and assignments in float64, and the backends that are tried.

Under TRITON_INTERPRET=1 the same tests run the Triton kernels on CPU: test_interpreted.py starts them so.
"""

from __future__ import annotations

import math
import os
from types import SimpleNamespace

import pytest

try:
    import torch
    import torch.utils.deterministic
except ModuleNotFoundError:  # the core install: nothing here can run
    collect_ignore_glob = ["*"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def route(logits, k, renormalise):
    """Experts as lists, and weights [T, k], mass [E], square and entropy, of logits float64 [T, E]."""
    experts, weights, masses, squares, entropies = [], [], [], [], []
    for row in logits:
        powers = [value.exp() for value in row]
        total = sum(powers)
        shares = [power / total for power in powers]
        chosen = sorted(range(len(row)), key=lambda e: (-shares[e].item(), e))[:k]
        whole = sum(shares[e] for e in chosen) if renormalise else 1
        experts.append(chosen)
        weights.append(torch.stack([shares[e] / whole for e in chosen]))
        masses.append(torch.stack(shares))
        squares.append(total.log() ** 2)
        entropies.append(-sum(share * share.log() for share in shares))
    return experts, torch.stack(weights), sum(masses), sum(squares), sum(entropies)


def activate(h, activation):
    if activation == "swiglu":
        gate, value = h[: len(h) // 2], h[len(h) // 2 :]
        return gate / (1 + (-gate).exp()) * value
    if activation == "relu":
        return h * (h > 0)
    return h * (1 + torch.erf(h / math.sqrt(2))) / 2


def experts(x, up, down, weights, chosen, token, activation):
    """[T, D]: assignment i adds weights[i] times the output of expert chosen[i] for token[i], if there is such an expert."""
    outputs = [row * 0 for row in x]
    for i, (e, t) in enumerate(zip(chosen, token, strict=True)):
        if e < len(up):
            outputs[t] = outputs[t] + weights[i] * (down[e] @ activate(up[e] @ x[t], activation))
    return torch.stack(outputs) if outputs else x * 0


def schedule(chosen, token, count, tokens):
    """The five lists of a schedule, by sorting pairs."""
    entries = sorted(range(len(chosen)), key=lambda i: (chosen[i], i))
    slot_of = {entry: slot for slot, entry in enumerate(entries)}
    by_token = sorted(range(len(chosen)), key=lambda i: (token[i], i))
    return (
        [sum(key < e for key in chosen) for e in range(count + 1)],
        entries,
        [token[i] for i in entries],
        [sum(t < bound for t in token) for bound in range(tokens + 1)],
        [slot_of[i] for i in by_token],
    )


@pytest.fixture(scope="session", name="reference")
def _reference():
    return SimpleNamespace(route=route, experts=experts, schedule=schedule)


@pytest.fixture(scope="session")
def backend():
    """Of routing and scheduling."""
    return "triton" if INTERPRETED else "plain"


def pytest_generate_tests(metafunc):
    """`computed_by`: the backends of experts with the element type and the tolerance each is tried with."""
    if "computed_by" in metafunc.fixturenames:
        f64, f32, f16 = torch.float64, torch.float32, torch.float16
        if INTERPRETED:  # bfloat16 is computed wrongly there
            cases = [("triton", f32, 1e-5), ("triton", f16, 5e-3)]
        else:
            cases = [("plain", f64, 1e-12), ("plain", f32, 1e-5), ("grouped", f32, 1e-5)]
        metafunc.parametrize("computed_by", cases, ids=[f"{name}-{str(dtype)[6:]}" for name, dtype, _ in cases])


@pytest.fixture(scope="module")
def no_memory_is_zero():
    """Memory that is not written holds NaN, or the largest integer: whoever reads it is found."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # an error where CUDA multiplies matrices otherwise
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
