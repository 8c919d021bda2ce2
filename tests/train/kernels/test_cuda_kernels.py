"""The Triton kernels on a GPU, in the types that they are for, at sizes of a real layer; each beside float64."""

from __future__ import annotations

import json

import pytest
import torch

from splice.train.kernels import ACTIVATIONS, experts, route, schedule
from splice.train.kernels.gpu import blocks

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("no_memory_is_zero"),
]
DEVICE = "cuda"
# Relative to the norm, and of the worst value to the largest: a tile that is wrong shows in the second.
TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float16: (2e-3, 2e-2), torch.bfloat16: (1.5e-2, 1e-1)}
SIZES = {  # (T, D, F, E, k)
    "granular": (4096, 1024, 256, 64, 8),
    "as granular as 64": (1024, 1024, 64, 256, 64),
    "few large experts": (2048, 1024, 1408, 8, 2),
    "few rows an expert": (128, 512, 256, 64, 4),
    "sizes that nothing divides": (1001, 521, 203, 13, 3),
}


def make(sizes, activation, dtype, seed=0):
    """x, up, down, logits."""
    tokens, depth, width, count, _ = sizes
    draw = torch.Generator().manual_seed(seed)

    def normal(*size, over=1):
        return (torch.randn(size, generator=draw) / over**0.5).to(DEVICE)

    high = 2 * width if activation == "swiglu" else width
    x, up, down = normal(tokens, depth), normal(count, high, depth, over=depth), normal(count, depth, width, over=width)
    return [x.to(dtype), up.to(dtype), down.to(dtype), normal(tokens, count)]


def assignments(logits, k, listed):
    """Experts, their tokens or None, weights: of top-k with a tenth dropped, or as experts choose their tokens."""
    tokens, count = logits.shape
    if listed:
        weights, token = logits.softmax(1).T.topk(tokens * k // count)  # [E, C]
        chosen = torch.arange(count, device=DEVICE, dtype=torch.int32).repeat_interleave(token.shape[1])
        return chosen, token.flatten().int(), weights.flatten()
    routes = route(logits, k, True, "triton")
    dropped = torch.arange(routes.experts.numel(), device=DEVICE).view_as(routes.experts) % 10 == 3
    return routes.experts.masked_fill(dropped, count).flatten(), None, routes.weights.flatten()


def run(sizes, activation, dtype, listed=False):
    """Outputs and the gradients of x, up, down, weights; and what they were made from."""
    x, up, down, logits = make(sizes, activation, dtype)
    chosen, token, weights = assignments(logits, sizes[4], listed)
    leaves = [leaf.detach().requires_grad_() for leaf in (x, up, down, weights)]
    plan = schedule(chosen, sizes[3], sizes[0], token, "triton")
    out = experts(*leaves, plan, activation, "triton")
    d_out = make(sizes, activation, dtype, seed=1)[0]
    out.backward(d_out)
    return [out.detach(), *(leaf.grad for leaf in leaves)], leaves, chosen, token, d_out


def literal(leaves, chosen, token, d_out, activation):
    x, up, down, weights = (leaf.detach().double().requires_grad_() for leaf in leaves)
    token = torch.arange(len(chosen), device=DEVICE) * len(x) // len(chosen) if token is None else token.long()
    out = torch.zeros_like(x)
    for e in range(len(up)):
        own = (chosen == e).nonzero()[:, 0]
        h = x[token[own]] @ up[e].T
        if activation == "swiglu":
            a = torch.nn.functional.silu(h[:, : h.shape[1] // 2]) * h[:, h.shape[1] // 2 :]
        else:
            a = h.relu() if activation == "relu" else torch.nn.functional.gelu(h)
        out = out.index_add(0, token[own], weights[own, None] * (a @ down[e].T))
    out.backward(d_out.double())
    return [out.detach(), x.grad, up.grad, down.grad, weights.grad]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("listed", [False, True], ids=["chosen by tokens", "chosen by experts"])
def test_outputs_and_gradients(name, dtype, listed):
    check(SIZES[name], "swiglu", dtype, listed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "swiglu"])
def test_without_a_gate(activation, dtype):
    check(SIZES["granular"], activation, dtype, False)


def check(sizes, activation, dtype, listed):
    got, *made = run(sizes, activation, dtype, listed)
    for name, ours, theirs in zip(("out", "x", "up", "down", "weights"), got, literal(*made, activation), strict=True):
        of_norm, of_worst = TOLERANCE[dtype]
        difference = ours.double() - theirs
        assert difference.norm() <= of_norm * theirs.norm(), name
        assert difference.abs().max() <= of_worst * theirs.abs().max(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
def test_twice_is_the_same_to_the_bit(dtype):
    first, second = (run(SIZES["granular"], "swiglu", dtype)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("listed", [False, True])
def test_the_schedule_is_the_plain_one_to_the_bit(listed):
    draw = torch.Generator().manual_seed(0)
    chosen = torch.randint(130, (4 * 30_001,), generator=draw, dtype=torch.int32)
    token = torch.randint(30_001, chosen.shape, generator=draw, dtype=torch.int32) if listed else None
    wanted = schedule(chosen, 129, 30_001, token, "plain")
    got = schedule(chosen.to(DEVICE), 129, 30_001, token if token is None else token.to(DEVICE), "triton")
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("tokens", "count", "k"), [(5000, 64, 8), (3000, 1000, 64), (17, 3, 2)])
@pytest.mark.parametrize("renormalise", [False, True])
def test_routes(tokens, count, k, renormalise):
    logits = torch.randn(tokens, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    results = []
    for given, backend in ((logits.float(), "triton"), (logits.float().double(), "plain")):
        given.requires_grad_()
        routes = route(given, k, renormalise, backend)
        (routes.weights.square().sum() + routes.mass.square().sum() / tokens + 0.1 * routes.square).backward()
        results.append((routes, given.grad))
    (ours, gradient), (theirs, exact) = results
    same = ours.experts == theirs.experts
    assert same.float().mean() > 0.9999  # float32 may see as equal what is not
    torch.testing.assert_close(ours.weights[same].double(), theirs.weights[same], rtol=1e-5, atol=1e-7)
    for a, b in zip(ours[2:], theirs[2:], strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
    assert (gradient - exact).norm() <= 1e-4 * exact.norm()


def test_of_equals_the_lowest_number_is_chosen_first():
    logits = torch.randint(3, (500, 40), generator=torch.Generator().manual_seed(0)).float()
    wanted = route(logits, 20, False, "plain").experts
    assert torch.equal(route(logits.to(DEVICE), 20, False, "triton").experts.cpu(), wanted)


def whole_layer(x, up, down, logits, token=None):
    routes = route(logits, 8, True)
    plan = schedule(routes.experts, 64, 4096, token)
    return experts(x, up, down, routes.weights.flatten(), plan).float().square().mean() + 1e-3 * routes.square


@pytest.mark.parametrize("listed", [False, True])
def test_the_host_waits_for_nothing(listed):
    leaves = [leaf.requires_grad_() for leaf in make(SIZES["granular"], "swiglu", torch.bfloat16)]
    token = torch.arange(4096 * 8, device=DEVICE, dtype=torch.int32).flip(0) // 8 if listed else None
    whole_layer(*leaves, token).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        whole_layer(*leaves, token).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_it_gives_what_it_gave():
    torch._dynamo.reset()
    losses, gradients = [], []
    for function in (whole_layer, torch.compile(whole_layer, fullgraph=True)):
        leaves = [leaf.requires_grad_() for leaf in make(SIZES["granular"], "swiglu", torch.bfloat16)]
        loss = function(*leaves)
        loss.backward()
        losses.append(loss.detach())
        gradients.append([leaf.grad.float() for leaf in leaves])
    torch.testing.assert_close(*losses)
    for eager, compiled in zip(*gradients, strict=True):
        assert (eager - compiled).norm() <= 1e-3 * eager.norm()


def test_measured_blocks_give_the_same_within_rounding(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    by_table = run(SIZES["granular"], "swiglu", torch.bfloat16)[0]
    with blocks.tuning():
        measured, again = (run(SIZES["granular"], "swiglu", torch.bfloat16)[0] for _ in range(2))
    for ours, theirs, second in zip(measured, by_table, again, strict=True):
        assert (ours.float() - theirs.float()).norm() <= 1e-2 * theirs.float().norm()
        assert torch.equal(ours, second)
    (file,) = (tmp_path / "splice").iterdir()
    kernels = {key.split("/")[0] for key in json.loads(file.read_text())}
    assert kernels == {"up gated", "product", "slope gated", "outer"}
