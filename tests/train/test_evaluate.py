"""Validation by position, and what a model costs."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dataclasses import replace

from splice.store import PackedDataset, Rows
from splice.train.data import Policy
from splice.train.evaluate import edges, evaluate
from splice.train.flops import flops_per_token, keys_seen, memory_bytes
from splice.train.fot import FoT
from splice.train.model import PRESETS, Llama, ModelConfig, initial
from splice.train.parallel import World

CPU = torch.device("cpu")


def test_buckets_double():
    assert edges(32768) == [0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert edges(64) == [0, 1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(("limit", "micro"), [(None, 1), (5, 2), (3, 4)])
def test_losses_by_position_equal_a_loop_over_tokens(built, limit, micro):
    rows = Rows(PackedDataset(built), 128)
    config = ModelConfig(600, 32, 1, 2, 2, 16, 64, 128)
    model = Llama(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, parameter.shape, config, 0) * 5)
    found = evaluate(model, rows, limit, micro, Policy(), World(CPU), lambda batch: None)
    per_position = np.zeros((2, 128))
    for index in range(limit or len(rows)):
        batch = rows.read(np.array([index]))
        ids = torch.from_numpy(batch.input_ids.astype(np.int64))
        with torch.no_grad():
            chances = model(ids)[0].log_softmax(-1)
        for t in range(128 - int(batch.padding[0]) - 1):
            per_position[:, t] += (-float(chances[t, ids[0, t + 1]]), 1)
    assert found["tokens"] == per_position[1].sum()
    assert found["loss"] == pytest.approx(per_position[0].sum() / per_position[1].sum(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    for bucket in found["by_position"]:
        inside = per_position[:, bucket["from"] : bucket["to"]].sum(1)
        assert bucket["tokens"] == inside[1]
        if inside[1]:
            assert bucket["loss"] == pytest.approx(inside[0] / inside[1], rel=1e-5)
    assert model.training


def test_evaluation_leaves_no_gradient_and_changes_nothing(built):
    rows = Rows(PackedDataset(built), 128)
    config = ModelConfig(600, 32, 1, 2, 2, 16, 64, 128)
    model = Llama(config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    evaluate(model, rows, 2, 1, Policy(), World(CPU), lambda batch: None)
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())


# ---------------------------------------------------------------------------------------------- what a model costs


@pytest.mark.parametrize("name", PRESETS)
def test_counted_parameters_are_those_of_the_model(name):
    with torch.device("meta"):
        model = Llama(PRESETS[name])
    assert PRESETS[name].parameters == sum(p.numel() for p in model.parameters())


def test_the_presets_are_as_large_as_they_are_called():
    sizes = {name: PRESETS[name].parameters / 1e9 for name in ("270m", "3b", "7b", "13b")}
    assert sizes == pytest.approx({"270m": 0.27, "3b": 3.43, "7b": 6.74, "13b": 13.02}, rel=0.02)


def test_flops_of_a_token_are_six_a_weight_and_twelve_a_key():
    config = PRESETS["270m"]
    weights = 12 * (4 * 1024 * 1024 + 3 * 1024 * 4096) + 32000 * 1024
    assert flops_per_token(config, 32768) == 6 * weights + 12 * 12 * 1024 * 32768
    assert flops_per_token(config, 32768, causal=True) == 6 * weights + 12 * 12 * 1024 * 32768 / 2


def test_fot_counts_the_keys_that_are_seen():
    fot = replace(PRESETS["270m"], fot=FoT((6, 9), 2048, 15))
    assert keys_seen(fot, 32768, memory=False) == 2048
    assert keys_seen(fot, 32768, memory=True) == 2048 * 8.5  # 1, 2 .. 16 contexts
    spans = 10 * 2048 + 2 * 2048 * 8.5
    assert flops_per_token(fot, 32768) == 6 * fot.matmul_parameters + 12 * 1024 * spans


def test_memory_falls_with_ranks_recomputation_and_context_parallelism():
    config = PRESETS["7b"]

    def total(ranks=1, recompute=False, parts=1):
        return sum(memory_bytes(config, 1, 32768, ranks, 2, recompute, parts).values())

    assert total() > total(recompute=True) > total(8, True) > total(8, True, 4)
    assert memory_bytes(config, 1, 32768, 1, 2, True, 1)["weights, gradients, moments"] == 16 * config.parameters
