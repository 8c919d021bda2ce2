"""FoT: who sees whom, in the formula and through a whole model; and what the cache makes of it at inference."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st

from splice.errors import SpliceError
from splice.train.attention import look
from splice.train.cache import Cache, generate, read, read_prompt
from splice.train.fot import FoT, visible_contexts
from splice.train.model import Llama, ModelConfig
from splice.train.rope import Rope

CPU = torch.device("cpu")
YARN = Rope("yarn", factor=4.0, original=16)  # attention factor 1.14: a memory key that is not scaled shows


def config(fot, rope=YARN):
    """Three layers, two query heads a key-value head."""
    return ModelConfig(29, 16, 3, 4, 2, 8, 24, 32, rope, fot)


def draw_ids(examples, length, seed=0):
    return torch.randint(0, 29, (examples, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def build(randomised):
    """A model in float64 with random weights."""
    return lambda fot, rope=YARN, **how: randomised(Llama(config(fot, rope), torch.float64, **how).double())


def literal_logits(literal, model, ids, contexts, mask):
    """Logits [N, V] and the weights they are made of; contexts [N]: the context of each token, which may end anywhere."""
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.state_dict().items()}
    starts = [contexts.index(c) for c in contexts]
    positions = torch.arange(len(ids)) - torch.tensor(starts)
    return literal.llama(model.config, weights, ids, positions, mask), weights


# visible_contexts


def test_the_known_value():
    assert (visible_contexts(8, 6, 4) - 1).tolist() == [0, 1, 2, 3, 0, 3, 6, 6]


def test_one_context_an_example():
    assert visible_contexts(6, 3, 1).tolist() == [1, 2, 3, 4, 4, 4]
    assert visible_contexts(3, 0, 1).tolist() == [1, 1, 1]


@given(rows=st.integers(1, 40), r=st.integers(0, 40), k=st.integers(1, 20))
@example(rows=40, r=3, k=4)
@example(rows=40, r=4, k=4)
def test_visible_contexts_are_the_formula(literal, rows, r, k):
    n = visible_contexts(rows, r, k)
    assert n.dtype == torch.int64
    assert n.tolist() == literal.visible(rows, r, k)
    assert all(1 <= x <= min(r, i) + 1 for i, x in enumerate(n.tolist()))


@given(rows=st.integers(1, 60), r=st.integers(0, 20), k=st.integers(1, 20))
@example(rows=8, r=3, k=4)
def test_a_range_within_an_example_has_no_negatives(rows, r, k):
    """The deviation: the formula alone would see another example at r = k - 1, and nowhere below."""
    n = visible_contexts(rows, r, k).tolist()
    formula = [min((i % k) * math.ceil((1 + r) / max(k - 1, 1)) + 1, 1 + r, i + 1) for i in range(rows)]
    if r < k:
        assert all(x <= i % k + 1 for i, x in enumerate(n))
    if r <= k - 2 or r >= k:
        assert n == (formula if k > 1 else [min(1 + r, i + 1) for i in range(rows)])


@pytest.mark.parametrize("k", [2, 4, 16])
def test_a_range_of_an_example_sees_all_of_it(k):
    assert visible_contexts(3 * k, k - 1, k).tolist() == [*range(1, k + 1)] * 3


# A whole model


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("examples", "per_example", "fot", "documents"),
    [
        (2, 4, FoT((1,), 8, 3), None),
        (2, 4, FoT((0, 2), 8, 6), None),
        (3, 1, FoT((1,), 8, 2), None),
        (2, 4, FoT((1,), 8, 6), [[0] * 3 + [1] * 17 + [2] * 12, [0] * 16 + [1] * 16]),
        (2, 1, None, None),
        (2, 1, None, [[0] * 3 + [1] * 5, [0] * 6 + [1] * 2]),
    ],
)
def test_a_model_is_its_literal_self(literal, agree, build, examples, per_example, fot, documents, recompute):
    """Logits, the loss and every gradient. The tables of cos and sin are float32, all else is float64."""
    length = 8 * per_example
    model = build(fot, recompute=recompute).train()
    ids, targets = draw_ids(examples, length), draw_ids(examples, length, 1)
    sight = None if documents is None else look(examples, length, fot, torch.tensor(documents), CPU)
    seen = literal.visible(examples * per_example, fot.cross_batch_range, per_example) if fot else None
    whose = documents and [(b, d) for b, row in enumerate(documents) for d in row]
    mask = literal.masks(examples * length, 8, seen, whose)
    contexts = [i // 8 for i in range(examples * length)]
    wanted, weights = literal_logits(literal, model, ids.flatten(), contexts, mask)
    agree(model(ids, sight=sight).flatten(0, 1), wanted, 1e-6)

    loss = model(ids, targets, sight=sight)
    loss.backward()
    expected = F.cross_entropy(wanted, targets.flatten(), reduction="sum")
    expected.backward()
    agree(loss, expected, 1e-6)
    for name, parameter in model.named_parameters():
        agree(parameter.grad, weights[name].grad, 1e-5)
    each = model(ids, targets, sight=sight, reduce=False)
    agree(each.flatten(), F.cross_entropy(wanted, targets.flatten(), reduction="none"), 1e-6)


@pytest.mark.parametrize(("examples", "r"), [(2, 3), (2, 6), (2, 1), (1, 3), (2, 0)])
def test_one_token_changes_exactly_what_sees_it(literal, build, examples, r):
    """Reach by hand: local layers pass a change on within a context, the memory layer (the second of three) further."""
    fot = FoT((1,), 8, r)
    model = build(fot)
    ids = draw_ids(examples, 32)
    n, seen = examples * 32, literal.visible(examples * 4, r, 4)
    with torch.no_grad():
        before = model(ids).flatten(0, 1)
        for token in (0, 7, 8, 13, 31):
            reach = {token}
            for layer in range(3):
                reach = {
                    i
                    for i in range(n)
                    for j in reach
                    if (i // 8 == j // 8 and j <= i) or (layer == 1 and 0 < i // 8 - j // 8 < seen[i // 8])
                }
            changed = ids.clone()
            changed[0, token] = (changed[0, token] + 1) % 29
            after = model(changed).flatten(0, 1)
            differ = (after != before).any(1).nonzero().flatten().tolist()
            assert set(differ) == reach
    if (examples, r) == (2, 6):
        assert 32 + 8 in reach  # the last token of the first example is a negative of the second


def test_positions_restart_in_every_context(agree, build):
    """Without range an FoT model is the plain one over contexts as examples."""
    plain, fot = build(None), build(FoT((0, 1, 2), 8, 0))
    ids = draw_ids(2, 32)
    agree(fot(ids).view(8, 8, 29), plain(ids.view(8, 8)), 1e-12)
    twice = ids[:, :8].repeat(1, 2)
    logits = fot(twice)
    agree(logits[:, 8:], logits[:, :8], 1e-12)


def test_memory_has_no_order(agree, randomised):
    """Keys of earlier contexts carry no position: swapping two contexts changes nothing after them.

    In a model of one layer, where keys do not depend on what stands before them.
    """
    one = dataclasses.replace(config(FoT((0,), 8, 3)), layers=1)
    model, ids = randomised(Llama(one, torch.float64).double()), draw_ids(1, 24)
    swapped = torch.cat((ids[:, 8:16], ids[:, :8], ids[:, 16:]), 1)
    before, after = model(ids), model(swapped)
    agree(after[:, 16:], before[:, 16:], 1e-12)
    assert (after[:, 8:16] - before[:, :8]).abs().max() > 1e-3  # the same context, with memory and without


# The cache

PIECES = {
    "at once": [32],
    "contexts": [8] * 4,
    "single tokens": [1] * 32,
    "across": [5, 8, 11, 8],
    "one over": [9, 7, 9, 7],
}


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("fot", [None, FoT((1,), 8, 3), FoT((0, 2), 16, 1)], ids=["plain", "fot", "fot-16"])
def test_reading_in_pieces_is_the_forward_pass(agree, build, fot, pieces):
    model, ids, cache = build(fot), draw_ids(2, 32), Cache()
    got = torch.cat([read(model, piece, cache, chunk=6) for piece in ids.split(PIECES[pieces], 1)], 1)
    agree(got, model(ids), 1e-12)
    assert cache.length == 32


def test_what_is_read_so_far_is_the_start_of_the_forward_pass(agree, build):
    """Also where a context is left half-read."""
    for fot in (None, FoT((1,), 8, 3)):
        model, ids = build(fot), draw_ids(2, 32)
        agree(read(model, ids[:, :19], Cache()), model(ids)[:, :19], 1e-12)


def prompt_contexts(length, last, local):
    """The context of each token of a prompt: windows of the prefix, then the last tokens; as `read_prompt` promises."""
    prefix = max(0, length - min(last, local))
    windows = math.ceil(prefix / local)
    return [i // local for i in range(prefix)] + [windows] * (length - prefix)


def prompt_mask(contexts):
    """Memory is every earlier context."""
    n = len(contexts)
    c, i = torch.tensor(contexts), torch.arange(n)
    return torch.cat(((c[:, None] == c) & (i[:, None] >= i), c[:, None] > c), 1)


@pytest.mark.parametrize("last", [1, 5, 8, 20])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 8, 13, 14, 21, 29])
def test_a_prompt_is_windows_of_the_prefix_and_the_last_context(literal, agree, build, length, last):
    model = build(FoT((1,), 8, 3, last_context=last))
    ids, cache = draw_ids(1, length), Cache()
    got = read_prompt(model, ids, cache)
    contexts = prompt_contexts(length, last, 8)
    wanted, _ = literal_logits(literal, model, ids[0], contexts, prompt_mask(contexts))
    agree(got[0], wanted[-1].detach(), 1e-6)
    assert cache.length == length
    assert cache.local == contexts.count(contexts[-1])


@pytest.mark.parametrize(("length", "last"), [(3, 5), (21, 5), (24, 8)])
def test_what_is_generated_fills_the_last_context_and_then_others(literal, build, length, last):
    model, prompt = build(FoT((1,), 8, 3, last_context=last)), draw_ids(1, length)
    ids, contexts = prompt[0], prompt_contexts(length, last, 8)
    for _ in range(12):
        token = literal_logits(literal, model, ids, contexts, prompt_mask(contexts))[0][-1].argmax()
        ids = torch.cat((ids, token[None]))
        contexts.append(contexts[-1] + (contexts.count(contexts[-1]) == 8))
    assert torch.equal(generate(model, prompt, 12)[0], ids[length:])


def test_generating_is_the_forward_pass_again_and_again(build):
    model, ids = build(None), draw_ids(2, 7)
    got = generate(model, ids, 10)
    for _ in range(10):
        with torch.no_grad():
            ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(got, ids[:, 7:])
    assert len(set(got.flatten().tolist())) > 3  # not one token again and again


def test_an_empty_prompt_is_refused(build):
    with pytest.raises(SpliceError, match="empty prompt"):
        generate(build(None), draw_ids(1, 0), 3)
