"""Ulysses: ranks that hold parts of the examples compute what one rank computes.

Two real processes over gloo, started once for all cases (this file is also their program); and four ranks as threads,
where two key-value heads go to two ranks each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from splice.train.attention import attention, look
from splice.train.fot import FoT
from splice.train.model import Llama, ModelConfig
from splice.train.rope import Rope
from splice.train.ulysses import Ulysses

CPU = torch.device("cpu")
RANKS = 2
CASES = {  # query heads, key-value heads, FoT, documents, activations recomputed
    "plain": (4, 2, None, False, False),
    "one key-value head": (4, 1, None, False, False),
    "documents": (4, 4, None, True, False),
    "fot": (4, 2, FoT((1,), 8, 3), False, False),
    "fot, negatives, a context on both ranks": (2, 1, FoT((1,), 32, 1), False, False),
    "fot, documents, recomputed": (4, 1, FoT((0, 1), 16, 2), True, True),
}


def make_case(name):
    """Model, ids, targets and sight of two examples of 32 tokens, the same in every process."""
    heads, kv_heads, fot, masked, recompute = CASES[name]
    config = ModelConfig(31, 16, 2, heads, kv_heads, 8, 24, 32, Rope("yarn", factor=4.0, original=16), fot)
    model = Llama(config, recompute=recompute).train()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn(weight.shape, generator=draw) / max(1, weight.shape[-1] ** 0.5) + (weight.ndim == 1)
            )
    ids, targets = (torch.randint(0, 31, (2, 32), generator=draw) for _ in range(2))
    documents = torch.tensor([[0] * 5 + [1] * 20 + [2] * 7, [0] * 20 + [1] * 12])
    return model, ids, targets, look(2, 32, fot, documents, CPU) if masked else None


def results(model, ids, targets, sight):
    """Logits, loss, and the gradient of every weight; with Ulysses of this rank's tokens."""
    with torch.no_grad():
        logits = model(ids, sight=sight)
    loss = model(ids, targets, sight=sight)
    loss.backward()
    return logits, loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def run_rank(rank, directory):
    """The program of one rank: its results of every case, and a mark that all were done."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=RANKS)
    ulysses, out = Ulysses(dist.group.WORLD), {}
    for name in CASES:
        model, ids, targets, sight = make_case(name)
        model.ulysses = ulysses
        for block in model.model.layers:
            block.self_attn.ulysses = ulysses
        part = slice(rank * 32 // RANKS, (rank + 1) * 32 // RANKS)
        out[name] = results(model, ids[:, part], targets[:, part], sight)
    torch.save(out, Path(directory, f"{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank computed, by case."""
    directory = tmp_path_factory.mktemp("ranks")
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"GLOO_SOCKET_IFNAME": "lo", **os.environ},
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * RANKS, "\n".join(said)
    return [torch.load(directory / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_one(agree, ranks, name):
    """Logits side by side, the sum of losses, the sum of gradients."""
    logits, loss, grads = results(*make_case(name))
    agree(torch.cat([rank[name][0] for rank in ranks], 1), logits, 1e-5)
    agree(sum(rank[name][1] for rank in ranks), loss, 1e-5)
    for weight, grad in grads.items():
        agree(sum(rank[name][2][weight] for rank in ranks), grad, 1e-5)


class Thread(Ulysses):
    """A rank that exchanges through a list that all threads share."""

    def __init__(self, rank, size, shared, barrier):
        self.rank, self.size, self.shared, self.barrier = rank, size, shared, barrier

    def _exchange(self, send):
        self.shared[self.rank] = send
        self.barrier.wait()
        got = torch.stack([parts[self.rank] for parts in self.shared])
        self.barrier.wait()
        return got


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (4, 2), (8, 2), (8, 4), (8, 8)])
def test_four_ranks_attend_as_one(agree, heads, kv_heads, memory):
    """Heads divided among ranks, key-value heads that are too few repeated; values and gradients, float64."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, raw = (
        torch.randn(2, h, 32, 4, generator=draw, dtype=torch.float64).requires_grad_()
        for h in (heads, kv_heads, kv_heads, kv_heads)
    )
    slope = torch.randn(q.shape, generator=draw, dtype=torch.float64)
    sight = look(2, 32, FoT((0,), 8, 6), None, CPU)
    inputs = [q, k, v, raw] if memory else [q, k, v]
    wanted = attention(q, k, v, sight, raw if memory else None)
    shared, barrier = [None] * 4, threading.Barrier(4, timeout=60)

    def rank(r):
        part = [x[:, :, 8 * r : 8 * r + 8] for x in inputs]
        return Thread(r, 4, shared, barrier).attention(*part[:3], sight, part[3] if memory else None)

    with ThreadPoolExecutor(4) as pool:
        got = torch.cat(list(pool.map(rank, range(4))), 2)
    agree(got.detach(), wanted.detach(), 1e-12)
    both = [torch.autograd.grad((out * slope).sum(), inputs) for out in (got, wanted)]
    for a, b in zip(*both, strict=True):
        agree(a, b, 1e-12)


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), sys.argv[2])
