"""What only a GPU can tell: bfloat16, FlexAttention's gradients and compiled steps, each beside the same on CPU."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from splice.train.attention import look
from splice.train.fot import FoT
from splice.train.loss import IGNORED, cross_entropy
from splice.train.model import Llama, ModelConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CUDA = torch.device("cuda")
FOT = FoT((1,), 128, 5)
SIGHTS = {
    "plain": (None, False),
    "documents": (None, True),
    "fot": (FOT, False),
    "fot and documents": (FOT, True),
    "fot of contexts that are no whole blocks": (FoT((1,), 64, 5), True),
}


def make_model(randomised, fot, dtype=torch.float32, recompute=False) -> Llama:
    return randomised(Llama(ModelConfig(257, 64, 3, 4, 2, 32, 96, 512, fot=fot), dtype, recompute))


def make_ids(step: int = 0):
    return torch.randint(257, (2, 512), generator=torch.Generator().manual_seed(step))


def make_documents(step: int = 0):
    """Two to five documents a row, cut at other places in every step."""
    draw = torch.Generator().manual_seed(step)
    cuts = torch.randint(1, 512, (2, 1, 4), generator=draw)
    return (torch.arange(512)[None, :, None] >= cuts).sum(2)


def loss_and_gradients(model, device, step: int = 0, documents: bool = False):
    model.zero_grad()
    ids = make_ids(step).to(device)
    sight = look(2, 512, model.config.fot, make_documents(step) if documents else None, device)
    loss = model(ids, F.pad(ids[:, 1:], (0, 1), value=IGNORED), sight)
    loss.backward()
    return {"loss": loss.detach().cpu()} | {name: p.grad.cpu() for name, p in model.named_parameters()}


@pytest.fixture(autouse=True)
def _exact():
    """No TF32, no compilation of another test."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", SIGHTS)
def test_a_step_is_that_of_the_cpu(randomised, agree, name, compiled):
    fot, documents = SIGHTS[name]
    model = make_model(randomised, fot)
    there = copy.deepcopy(model).to(CUDA)
    if compiled:
        for block in there.model.layers:
            block.compile()
    got, wanted = (
        loss_and_gradients(m, d, documents=documents) for m, d in ((there, CUDA), (model, torch.device("cpu")))
    )
    for which, value in wanted.items():
        agree(got[which], value, 1e-3)


@pytest.mark.parametrize("name", ["plain", "fot and documents"])
def test_a_recomputed_step_is_the_same(randomised, agree, name):
    fot, documents = SIGHTS[name]
    kept = make_model(randomised, fot).to(CUDA)
    again = make_model(randomised, fot, recompute=True).to(CUDA)
    for model in (kept, again):
        for block in model.model.layers:
            block.compile()
    got, wanted = (loss_and_gradients(model, CUDA, documents=documents) for model in (again, kept))
    for which, value in wanted.items():
        agree(got[which], value, 1e-4)


@pytest.mark.parametrize("name", SIGHTS)
def test_bfloat16_is_near_float32(randomised, name):
    fot, documents = SIGHTS[name]
    full = make_model(randomised, fot).to(CUDA)
    half = make_model(randomised, fot, torch.bfloat16).to(CUDA)
    ids = make_ids().to(CUDA)
    with torch.no_grad():
        sight = look(2, 512, fot, make_documents() if documents else None, CUDA)
        wanted, got = full(ids, sight=sight), half(ids, sight=sight)
    assert got.dtype == torch.bfloat16
    assert (got.float() - wanted).norm() < 3e-2 * wanted.norm()


@pytest.mark.parametrize("name", [name for name in SIGHTS if "no whole blocks" not in name])  # SDPA, a piece at a time
def test_steps_of_other_documents_are_not_compiled_again(randomised, name):
    """One graph for each kind of block, whatever the documents."""
    fot, documents = SIGHTS[name]
    model = make_model(randomised, fot, torch.bfloat16).to(CUDA)
    for block in model.model.layers:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    graphs = []
    for step in range(5):
        losses = loss_and_gradients(model, CUDA, step, documents)
        assert losses["loss"].isfinite()
        optimizer.step()
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs == graphs[:1] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_and_its_gradient(agree, dtype):
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 64, generator=draw).to(dtype) for n in (700, 257))
    targets = torch.randint(257, (700,), generator=draw)
    targets[::5] = IGNORED
    wide = [x.double().requires_grad_() for x in (hidden, weight)]
    wanted = F.cross_entropy(wide[0] @ wide[1].T, targets, ignore_index=IGNORED, reduction="sum")
    wanted.backward()
    leaves = [x.to(CUDA).requires_grad_() for x in (hidden, weight)]
    got = cross_entropy(*leaves, targets.to(CUDA))
    got.backward()
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for a, b in zip((got.detach(), *(x.grad for x in leaves)), (wanted.detach(), *(x.grad for x in wide)), strict=True):
        agree(a.cpu(), b, tolerance)
