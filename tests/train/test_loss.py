"""cross_entropy: F.cross_entropy's value and gradients, without logits of all tokens at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from splice.train import loss as module
from splice.train.loss import IGNORED, cross_entropy, token_losses

V, D = 37, 11


@pytest.fixture(params=[2**26, 1], ids=["one chunk", "chunks of 256"])
def _chunks(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_LOGITS", request.param)


def draw_inputs(n, dtype=torch.float64, v=V, d=D):
    """hidden, weight, targets; logits reach +-10. The last two tokens of the vocabulary are targets too."""
    draw = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, d, generator=draw, dtype=torch.float64).to(dtype)
    weight = torch.randn(v, d, generator=draw, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, v, (n,), generator=draw)
    targets[: min(n, 2)] = v - 1
    return hidden, weight, targets


def plain(hidden, weight, targets, slope=1.0):
    """Loss and both gradients by F.cross_entropy, float64."""
    hidden, weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    loss = F.cross_entropy(hidden @ weight.T, targets, ignore_index=-100, reduction="sum")
    (slope * loss).backward()
    return loss.detach(), hidden.grad, weight.grad


def ours(hidden, weight, targets, slope=1.0):
    hidden, weight = (x.detach().clone().requires_grad_() for x in (hidden, weight))
    loss = cross_entropy(hidden, weight, targets)
    (slope * loss).backward()
    return loss.detach(), hidden.grad, weight.grad


def some_ignored(targets, every):
    """Targets of which each `every`-th is left out; 0 leaves out none."""
    return targets if not every else targets.masked_fill(torch.arange(len(targets)) % every == 0, IGNORED)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 700])
def test_value_and_gradients(agree, n, every, dtype):
    """Logits are float32, whatever the inputs are."""
    hidden, weight, targets = draw_inputs(n, dtype)
    targets = some_ignored(targets, every)
    got, wanted = ours(hidden, weight, targets, 0.3), plain(hidden, weight, targets, 0.3)
    assert [x.dtype for x in got] == [torch.float32, dtype, dtype]
    for a, b in zip(got, wanted, strict=True):
        agree(a, b, 1e-6)


@pytest.mark.usefixtures("_chunks")
def test_rows_without_a_loss_have_no_gradient():
    hidden, weight, targets = draw_inputs(300)
    loss, d_hidden, d_weight = ours(hidden, weight, torch.full_like(targets, IGNORED))
    assert loss == 0
    assert not d_hidden.any()
    assert not d_weight.any()
    _, d_hidden, _ = ours(hidden, weight, some_ignored(targets, 3))
    assert not d_hidden[::3].any()
    assert d_hidden[1::3].any(1).all()


def test_ignored_is_that_of_torch():
    """-100 is what data is written with and what F.cross_entropy leaves out by default."""
    assert F.cross_entropy(torch.zeros(2, 3), torch.tensor([IGNORED, 1]), reduction="none")[0] == 0


@pytest.mark.usefixtures("_chunks")
def test_large_logits_do_not_overflow(agree):
    hidden, weight, targets = draw_inputs(300)
    got, wanted = ours(1e3 * hidden, weight, targets), plain(1e3 * hidden, weight, targets)
    for a, b in zip(got, wanted, strict=True):
        assert a.isfinite().all()
        agree(a, b, 1e-4)  # of logits of 1e4 in float32


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_what_is_frozen_gets_no_gradient(agree, frozen):
    hidden, weight, targets = draw_inputs(300, torch.float32)
    loss, d_hidden, d_weight = plain(hidden, weight, targets)
    hidden.requires_grad_(frozen == "weight")
    weight.requires_grad_(frozen == "hidden")
    got = cross_entropy(hidden, weight, targets)
    agree(got.detach(), loss, 1e-6)
    assert got.requires_grad == (frozen != "both")
    if frozen == "both":
        return
    got.backward()
    trained, wanted = (weight, d_weight) if frozen == "hidden" else (hidden, d_hidden)
    agree(trained.grad, wanted, 1e-6)
    assert (hidden if frozen == "hidden" else weight).grad is None


@pytest.mark.usefixtures("_chunks")
def test_gradients_add_up_over_calls(agree):
    """As in a step of several micro-batches, one of them scaled."""
    hidden, weight, targets = draw_inputs(600, torch.float32)
    weight.requires_grad_()
    cross_entropy(hidden[:300], weight, targets[:300]).backward()
    (2 * cross_entropy(hidden[300:], weight, targets[300:])).backward()
    first, second = (plain(hidden[part], weight, targets[part])[2] for part in (slice(0, 300), slice(300, 600)))
    agree(weight.grad, first + 2 * second, 1e-6)


@pytest.mark.usefixtures("_chunks")
def test_bfloat16(agree):
    """Products are rounded to bfloat16, 8 bits."""
    hidden, weight, targets = draw_inputs(1000, torch.bfloat16)
    got, wanted = ours(hidden, weight, targets), plain(hidden, weight, targets)
    assert [x.dtype for x in got] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for a, b, tolerance in zip(got, wanted, (2e-3, 2e-2, 2e-2), strict=True):
        agree(a, b, tolerance)


def test_gradients_of_many_chunks_are_summed_in_float32(monkeypatch):
    """600 equal parts: a sum in bfloat16 would stand still at 256 of them."""
    monkeypatch.setattr(module, "CHUNK_LOGITS", 1)
    n = 600 * 256
    _, _, d_weight = ours(torch.ones(n, 2).bfloat16(), torch.zeros(4, 2).bfloat16(), torch.zeros(n, dtype=torch.int64))
    wanted = n * torch.tensor([-0.75, 0.25, 0.25, 0.25])[:, None].expand(4, 2)
    torch.testing.assert_close(d_weight.float(), wanted, rtol=4e-3, atol=0)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 256, 700])
def test_token_losses(agree, n, every):
    hidden, weight, targets = draw_inputs(n, torch.float32)
    targets = some_ignored(targets, every)
    got = token_losses(hidden.requires_grad_(), weight, targets)
    assert got.dtype == torch.float32
    assert not got.requires_grad
    wanted = F.cross_entropy(hidden.double() @ weight.double().T, targets, ignore_index=-100, reduction="none").detach()
    assert (got - wanted).abs().max() <= 1e-5
    assert not got[targets == IGNORED].any()
    assert abs(got.sum() - cross_entropy(hidden, weight, targets)) <= 1e-5 * n


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        return out


def run_and_measure(function, n, v, d):
    """(elements of the largest tensor, elements kept between forward and backward)."""
    hidden, weight, targets = draw_inputs(n, torch.float32, v, d)
    hidden, weight, kept = hidden.requires_grad_(), weight.requires_grad_(), []
    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
            loss = function(hidden, weight, targets)
        loss.backward()
    return largest.elements, sum(kept)


def test_logits_of_all_tokens_never_exist(monkeypatch):
    n, v, d = 4096, 2048, 16
    monkeypatch.setattr(module, "CHUNK_LOGITS", 2**19)  # 256 tokens
    largest, kept = run_and_measure(cross_entropy, n, v, d)
    assert largest <= 2**19
    assert kept <= (n + v) * d  # the two gradients
    largest, kept = run_and_measure(lambda h, w, t: F.cross_entropy(h @ w.T, t, reduction="sum"), n, v, d)
    assert largest == n * v  # the measure sees what it is there for
    assert kept >= n * v
    with Largest() as mode:
        token_losses(*draw_inputs(n, torch.float32, v, d))
    assert mode.elements <= 2**19


def test_a_chunk_is_256_mebibytes_at_most():
    """In float32, up to vocabularies of 2^18 tokens; beyond, chunks stay at 256 tokens."""
    for vocabulary in (32_000, 128_256, 2**18):
        assert module._chunk(torch.empty(vocabulary, 0)) * vocabulary * 4 <= 2**28


def test_the_scale_of_the_loss_is_not_rounded_to_the_inputs_dtype():
    """Trunk and head must be scaled alike: the trainer divides by the number of predicted tokens."""
    hidden, weight, targets = draw_inputs(512, torch.bfloat16)
    whole, third = (
        torch.autograd.grad(cross_entropy(h, weight, targets) * scale, h)[0].double().flatten()
        for scale in (1.0, 1 / 3)
        for h in [hidden.clone().requires_grad_()]
    )
    assert float(third @ whole / (whole @ whole)) == pytest.approx(1 / 3, rel=5e-4)
