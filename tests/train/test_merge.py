"""Attention over parts, merged, is attention over their union."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from splice.train.cache import Cache, read
from splice.train.fot import FoT
from splice.train.merge import attend, merge
from splice.train.model import Llama, ModelConfig


def literal_attention(q, k, v, seen, scale):
    """Softmax over the keys that are seen, head by head; q [B, H, T, D], k and v [B, G, S, D], seen bool [T, S]."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    share = q.shape[1] // k.shape[1]
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // share].transpose(1, 2) * scale
        out[:, head] = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v[:, head // share]
    return out


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("value_size", [16, 8], ids=["equal", "values are smaller"])
def test_three_parts(dtype, tolerance, heads, scale, value_size, agree):
    b, t, d = 2, 7, 16
    q = drawn(b, heads, t, d, dtype=dtype)
    parts = [
        (drawn(b, 2, s, d, dtype=dtype, seed=s), drawn(b, 2, s, value_size, dtype=dtype, seed=-s)) for s in (33, 1, 7)
    ]
    got = merge(
        [
            attend(q, *parts[0], scale=scale),
            attend(q, *parts[1], scale=scale),
            attend(q, *parts[2], causal=True, scale=scale),
        ]
    )
    k, v = (torch.cat([part[i] for part in parts], 2).double() for i in (0, 1))
    seen = torch.cat((torch.ones(t, 34, dtype=torch.bool), torch.ones(t, t, dtype=torch.bool).tril()), 1)
    agree(got, literal_attention(q.double(), k, v, seen, scale or d**-0.5), tolerance)
    assert got.dtype == dtype


def test_a_mask_of_each_row(agree):
    b, heads, t, s, d = 3, 4, 5, 9, 8
    q, k, v = drawn(b, heads, t, d), drawn(b, 2, s, d, seed=1), drawn(b, 2, s, d, seed=2)
    mask = torch.rand(b, t, s, generator=torch.Generator().manual_seed(3)) < 0.5
    mask[:, :, 0] = True
    out, lse = attend(q, k, v, mask=mask)
    for row in range(b):
        agree(out[row : row + 1], literal_attention(*(x[row : row + 1] for x in (q, k, v)), mask[row], d**-0.5), 1e-13)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(2, 1)) * d**-0.5
    agree(lse, scores.masked_fill(~mask[:, None], -math.inf).logsumexp(-1), 1e-13)


def test_scores_are_written_out_a_piece_at_a_time(monkeypatch, agree):
    from splice.train import merge as module

    q, k, v = drawn(2, 4, 11, 8), drawn(2, 2, 9, 8, seed=1), drawn(2, 2, 9, 8, seed=2)
    mask = torch.ones(2, 11, 9, dtype=torch.bool).tril()
    whole = attend(q, k, v, mask=mask)
    monkeypatch.setattr(module, "MOST_SCORES", 2 * 2 * 9 * 3)  # three queries
    for got, wanted in zip(attend(q, k, v, mask=mask), whole, strict=True):
        agree(got, wanted, 1e-14)


@pytest.mark.parametrize("fot", [None, FoT((1,), 16, 15, 8)], ids=["plain", "fot"])
def test_a_cropped_cache_goes_on_as_if_it_had_read_no_more(fot, randomised, agree):
    model = randomised(Llama(ModelConfig(97, 32, 2, 4, 2, 8, 48, 96, fot=fot), torch.float64).double())
    ids = torch.randint(97, (1, 96), generator=torch.Generator().manual_seed(0))
    for kept in (0, 32, 48) if fot else (1, 17, 50):
        cache, fresh = Cache(), Cache()
        read(model, ids[:, :60], cache, chunk=25)
        cache.crop(kept)
        if kept:
            read(model, ids[:, :kept], fresh, chunk=25)
        assert cache.length == kept
        agree(read(model, ids[:, kept:90], cache), read(model, ids[:, kept:90], fresh), 1e-12)
