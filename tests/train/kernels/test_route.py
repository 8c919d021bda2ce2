"""The router's softmax, choice and sums, and their gradient."""

from __future__ import annotations

import pytest
import torch

from splice.train.kernels import route

pytestmark = pytest.mark.usefixtures("no_memory_is_zero")


def make_logits(tokens, count, seed=0):
    return torch.randn(tokens, count, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("renormalise", [False, True], ids=["as they are", "renormalised"])
@pytest.mark.parametrize(("tokens", "count", "k"), [(37, 6, 2), (1, 1, 1), (5, 70, 64), (70, 5, 5), (9, 33, 1)])
def test_it_is_softmax_and_the_best_k(reference, backend, agree, tokens, count, k, renormalise):
    logits = make_logits(tokens, count).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    got, wanted = route(logits, k, renormalise, backend), reference.route(exact, k, renormalise)
    assert got.experts.dtype == torch.int32
    assert got.experts.tolist() == wanted[0]
    for ours, theirs in zip(got[1:4], wanted[1:4], strict=True):
        agree(ours.detach(), theirs.detach(), 2e-6)
    assert abs(got.entropy - wanted[4]) <= 2e-6 * tokens

    draw = torch.Generator().manual_seed(1)
    d_weights, d_mass = torch.randn(tokens, k, generator=draw), torch.randn(count, generator=draw)
    ((got.weights * d_weights).sum() + (got.mass * d_mass).sum() + 0.3 * got.square).backward()
    ((wanted[1] * d_weights).sum() + (wanted[2] * d_mass).sum() + 0.3 * wanted[3]).backward()
    assert (logits.grad - exact.grad).abs().max() <= 1e-5 * max(exact.grad.abs().max(), 1)


def test_in_float64_the_plain_one_agrees_to_the_last_digits(reference, agree):
    logits = make_logits(7, 5).double().requires_grad_()
    exact = logits.detach().requires_grad_()
    got, wanted = route(logits, 2, True, "plain"), reference.route(exact, 2, True)
    (got.weights.square().sum() + got.mass.square().sum() + got.square).backward()
    (wanted[1].square().sum() + wanted[2].square().sum() + wanted[3]).backward()
    agree(got.weights.detach(), wanted[1].detach(), 1e-12)
    agree(logits.grad, exact.grad, 1e-12)


def test_of_equals_the_lowest_number_is_chosen_first(backend):
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0], [0.0] * 5])
    assert route(logits, 4, False, backend).experts.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


def test_an_expert_that_is_masked_out_has_no_share_and_no_gradient(backend):
    logits = torch.tensor([[0.5, -torch.inf, 1.0]], requires_grad=True)
    got = route(logits, 2, True, backend)
    assert got.experts.tolist() == [[2, 0]]
    (got.weights[0, 0] + got.mass[0]).backward()
    assert logits.grad[0, 1] == 0
    assert got.entropy.isfinite()


def test_large_logits_do_not_overflow(backend):
    got = route(torch.tensor([[300.0, 299.0, -300.0]]), 2, False, backend)
    assert got.weights.sum().isclose(torch.tensor(1.0))
    assert got.square.sqrt().isclose(torch.tensor(300.3133))


def test_what_is_no_number_still_goes_to_an_expert_that_there_is(backend):
    got = route(torch.full((2, 5), torch.nan), 3, False, backend)
    assert got.experts.tolist() == [[0, 1, 2]] * 2
    assert got.weights.isnan().all()


def test_no_tokens(backend):
    logits = torch.zeros(0, 4, requires_grad=True)
    got = route(logits, 2, True, backend)
    assert got.experts.shape == (0, 2)
    assert got.mass.tolist() == [0] * 4
    assert (got.square, got.entropy) == (0, 0)
    got.weights.sum().backward()
    assert logits.grad.shape == (0, 4)


def test_logits_laid_out_otherwise(backend):
    logits = make_logits(6, 9).T.contiguous().T.requires_grad_()
    same = logits.detach().contiguous().requires_grad_()
    for given in (logits, same):
        got = route(given, 2, True, backend)
        (got.weights[:, 0].sum() + got.square).backward()
    assert torch.equal(logits.grad, same.grad)
    assert not logits.is_contiguous()


def test_twice_is_the_same_to_the_bit(backend):
    logits = make_logits(90, 6)
    for first, second in zip(route(logits, 2, True, backend), route(logits, 2, True, backend), strict=True):
        assert torch.equal(first, second)
