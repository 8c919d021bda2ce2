"""Outputs and all gradients of the experts against a loop over assignments in float64."""

from __future__ import annotations

import pytest
import torch

from splice.train.kernels import ACTIVATIONS, experts, schedule

pytestmark = pytest.mark.usefixtures("no_memory_is_zero")


def random(count, tokens, k):
    """Each token to k different experts."""
    scores = torch.rand(tokens, count, generator=torch.Generator().manual_seed(3))
    return scores.argsort(1)[:, :k].flatten().tolist()


CASES = {  # (experts of assignments, their tokens or None, E, T, D, F)
    "random": (random(6, 37, 2), None, 6, 37, 40, 24),
    "empty experts": (random(2, 20, 2), None, 9, 20, 32, 16),
    "all to one": ([2] * 45, None, 4, 45, 32, 16),
    "one token": ([1, 3, 0], None, 4, 1, 16, 16),
    "one expert, one assignment": ([0], None, 1, 1, 16, 8),
    "sizes that nothing divides": (random(5, 23, 3), None, 5, 23, 67, 41),
    "many experts, many a token": (random(64, 3, 20), None, 64, 3, 24, 8),
    "every expert for every token": (random(64, 1, 64), None, 64, 1, 16, 8),
    "several tiles of an expert": (random(2, 90, 1), None, 2, 90, 72, 80),
    "some dropped": ([3, 0, 1, 3, 2, 3, 0, 3, 3, 3, 1, 3], None, 3, 6, 16, 16),
    "all dropped": ([4] * 10, None, 4, 5, 16, 16),
    "chosen by experts": ([0] * 7 + [1] * 7 + [2] * 7, [5, 0, 3, 9, 8, 1, 2] * 2 + [9, 3, 3, 0, 1, 5, 8], 3, 12, 24, 16),
    "by experts, some dropped": ([1, 2, 0, 2, 2, 1, 0], [4, 4, 4, 0, 2, 0, 0], 2, 5, 16, 24),
    "no tokens": ([], None, 3, 0, 16, 16),
}  # fmt: skip


def make(case, activation, dtype):
    """x, up, down, weights of sizes at which every product is about 1, rounded to dtype."""
    chosen, _, count, tokens, depth, width = case
    draw = torch.Generator().manual_seed(0)

    def normal(*size, over=1.0):
        return (torch.randn(size, generator=draw, dtype=torch.float64) / over**0.5).to(dtype)

    high = 2 * width if activation == "swiglu" else width
    weights = torch.rand(len(chosen), generator=draw).to(torch.float64 if dtype == torch.float64 else torch.float32)
    return (
        normal(tokens, depth),
        normal(count, high, depth, over=depth),
        normal(count, depth, width, over=width),
        weights,
    )


def plan_of(case, backend):
    chosen, token, count, tokens, *_ = case
    token = None if token is None else torch.tensor(token, dtype=torch.int32)
    return schedule(
        torch.tensor(chosen, dtype=torch.int32), count, tokens, token, "plain" if backend != "triton" else "triton"
    )


def direction(like):
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def run(case, activation, backend, dtype, layout=lambda tensor: tensor):
    """Outputs and the gradients of x, up, down, weights."""
    leaves = [layout(tensor).requires_grad_() for tensor in make(case, activation, dtype)]
    out = experts(*leaves, plan_of(case, backend), activation, backend)
    out.backward(direction(out).to(dtype))
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def literal(reference, case, activation, dtype):
    leaves = [tensor.double().requires_grad_() for tensor in make(case, activation, dtype)]
    chosen, token, _, tokens, *_ = case
    token = token or [i * tokens // len(chosen) for i in range(len(chosen))]
    out = reference.experts(*leaves, chosen, token, activation)
    out.backward(direction(out).to(dtype).double())
    return [out.detach(), *(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)]


def check(reference, case, activation, computed_by):
    backend, dtype, tolerance = computed_by
    if backend == "grouped" and case[4] % 4 + case[5] % 4:
        pytest.skip("torch's grouped_mm wants rows of whole 16 bytes")
    got, wanted = run(case, activation, backend, dtype), literal(reference, case, activation, dtype)
    for name, ours, theirs in zip(("out", "x", "up", "down", "weights"), got, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == (dtype if name != "weights" or dtype == torch.float64 else torch.float32)
        if theirs.numel():
            worst, scale = (ours.double() - theirs).abs().max().item(), theirs.abs().max().item()
            assert worst <= tolerance * scale, f"{name} differs by {worst:.2e} where values reach {scale:.2e}"


@pytest.mark.parametrize("name", CASES)
def test_swiglu(reference, computed_by, name):
    check(reference, CASES[name], "swiglu", computed_by)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name != "swiglu"])
@pytest.mark.parametrize("name", ["random", "sizes that nothing divides", "some dropped"])
def test_without_a_gate(reference, computed_by, name, activation):
    check(reference, CASES[name], activation, computed_by)


def test_weights_laid_out_otherwise(computed_by):
    """As matrices [E, D, 2F] and [E, F, D] seen from the other side, and x as a slice of more."""
    backend, dtype, _ = computed_by

    def layout(tensor):
        if tensor.ndim == 3:
            return tensor.mT.contiguous().mT
        return torch.cat((tensor, tensor), -1)[:, : tensor.shape[1]] if tensor.ndim == 2 else tensor

    case = CASES["random"]
    for got, wanted in zip(
        run(case, "swiglu", backend, dtype, layout), run(case, "swiglu", backend, dtype), strict=True
    ):
        assert (got - wanted).abs().max() <= (1e-2 if dtype == torch.float16 else 1e-5) * wanted.abs().max()


def test_twice_is_the_same_to_the_bit(computed_by):
    backend, dtype, _ = computed_by
    first, second = (run(CASES["random"], "swiglu", backend, dtype) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_weight_that_nobody_computes_has_gradient_0_and_the_others_their_own(computed_by):
    backend, dtype, _ = computed_by
    case = CASES["some dropped"]
    gradient = run(case, "swiglu", backend, dtype)[4]
    dropped = torch.tensor(case[0]) == case[2]
    assert (gradient[dropped] == 0).all()
    assert (gradient[~dropped] != 0).all()


def test_a_dropped_assignment_leaves_everything_to_the_others(computed_by):
    """The same to the bit as if it had not been made, whatever its weight."""
    backend, dtype, _ = computed_by
    if backend == "grouped":
        pytest.skip("multiplies by its weight, and adds in the order of slots")
    x, up, down, weights = make(CASES["some dropped"], "swiglu", dtype)
    chosen, tokens = torch.tensor(CASES["some dropped"][0], dtype=torch.int32), torch.arange(12, dtype=torch.int32) // 2
    kept = chosen < 3
    plans = [schedule(chosen, 3, 6, tokens), schedule(chosen[kept], 3, 6, tokens[kept])]
    weights[~kept] = torch.nan
    both = [
        experts(x, up, down, w, plan, backend=backend) for w, plan in zip((weights, weights[kept]), plans, strict=True)
    ]
    assert torch.equal(*both)


def test_all_that_is_kept_for_the_backward_pass(computed_by):
    backend, dtype, _ = computed_by
    if backend == "grouped":
        pytest.skip("keeps everything")
    case = CASES["random"]
    leaves = [tensor.requires_grad_() for tensor in make(case, "swiglu", dtype)]
    plan, kept = plan_of(case, backend), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        experts(*leaves, plan, "swiglu", backend)
    places = {tensor.data_ptr() for tensor in (*leaves, *plan)}
    others = [tensor for tensor in kept if tensor.data_ptr() not in places]
    assert len(kept) == len({tensor.data_ptr() for tensor in kept}) == len(leaves) + len(plan) + 1
    assert [tensor.shape for tensor in others] == [(len(case[0]), leaves[1].shape[1])]  # H


def test_other_types_are_refused_by_name():
    x, up, down, weights = make(CASES["random"], "swiglu", torch.float64)
    with pytest.raises(ValueError, match=r"x torch\.float64.*float32, bfloat16, float16.*plain"):
        experts(x, up, down, weights, plan_of(CASES["random"], "plain"), backend="triton")


def test_a_is_made_from_h_as_it_is_kept(computed_by):
    backend, dtype, _ = computed_by
    if backend != "triton" or dtype != torch.float16:
        pytest.skip("A is not to be seen, or H is not rounded")
    from splice.train.kernels import plain
    from splice.train.kernels.gpu import products
    from splice.train.kernels.gpu.tiles import Tiles

    case = CASES["random"]
    x, up, *_ = make(case, "swiglu", dtype)
    plan = plan_of(case, backend)
    h, a = products.up(x, up, plan, Tiles(plan.offsets, len(plan.entries)), "swiglu")
    assert (a == plain.activate(h, "swiglu")).float().mean() > 0.99  # the two exponentials are not the same to the bit
