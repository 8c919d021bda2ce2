"""Blocks compiled as the trainer compiles them: one compilation serves all of a kind, and what comes out is the same."""

from __future__ import annotations

import copy
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from splice.train import loss
from splice.train.attention import look
from splice.train.fot import FoT
from splice.train.model import Llama, ModelConfig

CPU = torch.device("cpu")
COMPILER = shutil.which("g++") and Path(sysconfig.get_path("include"), "Python.h").exists()


def make_config(layers: int, fot: FoT | None) -> ModelConfig:
    return ModelConfig(61, 32, layers, 4, 2, 8, 48, 64, fot=fot)


def loss_and_gradients(model, ids, documents, device=CPU):
    """Of next tokens, at any device; gradients by name."""
    model.zero_grad()
    sight = look(*ids.shape, model.config.fot, documents, device)
    loss = model(ids.to(device), ids.roll(-1, 1).to(device), sight)
    loss.backward()
    return {"loss": loss.detach().cpu()} | {name: p.grad.cpu() for name, p in model.named_parameters()}


@pytest.mark.parametrize("recompute", [False, True])
def test_one_compilation_serves_every_block(recompute):
    """Torch gives up after eight of one function, and then runs the rest of a deep model uncompiled without a word."""
    model = Llama(make_config(10, None), recompute=recompute)
    counter = CompileCounterWithBackend("aot_eager")
    for block in model.model.layers:
        block.compile(backend=counter, fullgraph=True)
    for step in range(3):
        loss_and_gradients(model, torch.arange(step, step + 128).view(2, 64) % 61, None)
    assert counter.frame_count == 1


@pytest.mark.skipif(not COMPILER, reason="needs a compiler")
def test_loss_and_gradients_of_compiled_blocks(randomised, agree):
    """A layer of each kind, for whom on CPU attention itself stays uncompiled where it follows the data."""
    model = randomised(Llama(make_config(2, FoT((1,), 16, 3))))
    compiled = copy.deepcopy(model)
    for block in compiled.model.layers:
        block.compile()
    documents = torch.tensor([[0] * 20 + [1] * 44, [0] * 64])
    ids = torch.arange(128).view(2, 64) * 7 % 61
    for documents_or_none in (None, documents):
        got = loss_and_gradients(compiled, ids, documents_or_none)
        wanted = loss_and_gradients(model, ids, documents_or_none)
        for name, value in wanted.items():
            agree(got[name], value, 1e-4)


@pytest.mark.skipif(not COMPILER, reason="needs a compiler")
def test_a_fused_loss_is_the_loss(monkeypatch, agree):
    monkeypatch.setattr(loss, "_softmax", loss._softmax_of_chunk)  # put back afterwards
    monkeypatch.setattr(loss, "CHUNK_LOGITS", 1)  # chunks of 256
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(600, 16, generator=draw), torch.randn(61, 16, generator=draw)
    targets = torch.randint(0, 61, (600,), generator=draw)
    targets[::7] = loss.IGNORED

    def gradients():
        inputs = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        total = loss.cross_entropy(*inputs, targets)
        return [total.detach(), *torch.autograd.grad(total, inputs)]

    wanted = gradients()
    loss.fuse()
    assert loss._softmax is not loss._softmax_of_chunk
    for got, value in zip(gradients(), wanted, strict=True):
        agree(got, value, 1e-5)
