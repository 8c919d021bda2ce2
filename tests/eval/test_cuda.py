"""On a GPU: attention in parts by the device's kernels, and a whole run as on a CPU."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from splice.eval.models import open_model
from splice.eval.settings import EngineSettings
from splice.eval.task import Group, Query
from splice.train.merge import attend, merge


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize(("heads", "size"), [(8, 64), (8, 128), (4, 100), (4, 36)])
@pytest.mark.parametrize("tokens", [1, 7, 128, 333])
def test_parts_merge_to_their_union(dtype, tolerance, heads, size, tokens):
    draw = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=draw, device="cuda").to(dtype)

    q, k, v = drawn(1, heads, tokens, size), drawn(1, 4, 1000, size), drawn(1, 4, 1000, size)
    own_k, own_v = drawn(1, 4, tokens, size), drawn(1, 4, tokens, size)
    got = merge([attend(q, k, v), attend(q, own_k, own_v, causal=True)])
    keys, values = (torch.cat(pair, 2).double().repeat_interleave(heads // 4, 1) for pair in ((k, own_k), (v, own_v)))
    seen = torch.ones(tokens, 1000 + tokens, dtype=torch.bool, device="cuda").tril(1000)
    scores = (q.double() @ keys.transpose(-1, -2) / math.sqrt(size)).masked_fill(~seen, -math.inf)
    wanted = scores.softmax(-1) @ values
    assert (got.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("backend", ["splice", "transformers"])
def test_answers_are_those_of_a_cpu(llama, backend):
    labels = (" NUM", " ENTY", " HUM")
    lines = "".join(f"Question: what is topic{i % 7}?\nType:{labels[i % 3]}\n" for i in range(60))
    queries = tuple(
        Query(str(i), str(i), f"Question: what is kana{i}?\nType:", (" HUM",), labels, "\n") for i in range(40)
    )
    group = Group("g", "c", lines, queries)
    answered = {}
    for device in ("cpu", "cuda"):
        model = open_model(str(llama), EngineSettings(device=device, dtype="float32", backend=backend, chunk=64))
        answered[device] = model.engine.answer(group, {0: 8}, check=10)
    assert all(answered["cuda"].agrees.values())
    for cpu, cuda in zip(answered["cpu"].answers, answered["cuda"].answers, strict=True):
        assert cpu.matched == cuda.matched
        assert cpu.log_likelihoods == pytest.approx(cuda.log_likelihoods, abs=1e-3)


def test_losses_in_bfloat16(llama):
    ids = torch.randint(3, 640, (1500,), generator=torch.Generator().manual_seed(0)).tolist()
    exact = open_model(str(llama), EngineSettings(device="cuda", dtype="float32")).engine.losses(ids, "text")
    half = open_model(str(llama), EngineSettings(device="cuda", dtype="bfloat16")).engine.losses(ids, "text")
    assert abs(exact.mean() - half.mean()) < 0.05 * exact.mean()
