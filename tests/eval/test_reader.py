"""The logits of shared prefixes are those of full forward passes, on every path; what is generated is what is scored."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from splice.errors import SpliceError
from splice.eval.ours import LlamaNet
from splice.eval.reader import SharedReader
from splice.eval.tree import ancestors, batches, grow
from splice.train.attention import Sight

PREFIX = torch.randint(3, 640, (300,), generator=torch.Generator().manual_seed(1)).tolist()
SUFFIXES = [[5, 9, 11], [7], [8, 8, 4, 100, 33, 20, 17], [9] * 12]
ANSWERS = [[[40, 41], [40, 42, 43], [40, 44, 45, 46], [50, 51], [52]], [[60]], [[1, 2, 3, 4, 5]], [[70, 71], [72]]]


def net_of(directory, kind):
    if kind == "ours":
        return LlamaNet(directory, torch.float32, torch.device("cpu"))
    from splice.eval.hub import HubNet, why_whole

    net = HubNet(directory, torch.float32, torch.device("cpu"))
    assert why_whole(net) is None
    return net


def full_logits(directory, kind, prefix, ids):
    """[len(ids), V] after a prefix, by one plain forward pass."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor([prefix + ids])).logits[0, len(prefix) :]


def check(reader, prefix, logits_of, suffixes=SUFFIXES, answers=ANSWERS):
    room = max(len(s) + max(map(len, a)) for s, a in zip(suffixes, answers, strict=True))
    cache = reader.read(prefix, room)
    read = reader.score(cache, [grow(s, a) for s, a in zip(suffixes, answers, strict=True)])
    for suffix, options, paths in zip(suffixes, answers, read, strict=True):
        for answer, (likelihoods, greedy) in zip(options, paths, strict=True):
            wanted = logits_of(suffix + answer[:-1])[len(suffix) - 1 :].log_softmax(-1)
            exact = wanted[range(len(answer)), answer]
            assert torch.allclose(torch.tensor(likelihoods), exact, atol=1e-5, rtol=1e-5)
            assert greedy == (wanted.argmax(-1) == torch.tensor(answer)).tolist()


@pytest.mark.parametrize("kind", ["ours", "transformers"])
@pytest.mark.parametrize(("chunk", "tokens"), [(64, 4096), (100, 20), (2048, 8)])
def test_logits_are_those_of_a_full_pass(llama, kind, chunk, tokens):
    reader = SharedReader(net_of(llama, kind), chunk, tokens)
    check(reader, PREFIX, lambda ids: full_logits(llama, kind, PREFIX, ids))


@pytest.mark.parametrize("prefix", [PREFIX[:1], []], ids=["one token", "none"])
def test_short_prefixes(llama, prefix):
    check(SharedReader(net_of(llama, "ours"), 64, 4096), prefix, lambda ids: full_logits(llama, "ours", prefix, ids))


def test_a_prefix_is_gone_on_with_where_the_last_one_parts(llama):
    reader = SharedReader(net_of(llama, "ours"), 32, 4096)
    fed = []
    run = reader._net.run
    reader._net.run = lambda ids, cache, at: (fed.append(len(ids)), run(ids, cache, at))[1]
    for prefix, read in [
        (PREFIX, 300),
        (PREFIX[:200] + [7] * 50, 250 - 192),
        (PREFIX[:200] + [7] * 50, 250 - 224),
        ([9] * 40, 40),
    ]:
        fed.clear()
        reader.read(prefix, 20)
        assert sum(fed) == read
        check(reader, prefix, lambda ids, prefix=prefix: full_logits(llama, "ours", prefix, ids))


def test_what_was_read_before_does_not_change_a_bit(llama):
    trees = [grow(s, a) for s, a in zip(SUFFIXES, ANSWERS, strict=True)]
    fresh, used = (SharedReader(net_of(llama, "ours"), 32, 4096) for _ in range(2))
    used.read(PREFIX[:150] + [3] * 100, 20)
    assert fresh.score(fresh.read(PREFIX, 20), trees) == used.score(used.read(PREFIX, 20), trees)


def fot_logits(net, prefix, kept, ids):
    """By the trainer's pass over whole contexts of 64: the memory sees all earlier ones. What is remembered must be whole contexts."""
    remembered = len(prefix) - kept
    assert remembered % 64 == 0
    text = prefix + ids
    text = text + [0] * (-len(text) % 64)
    sight = Sight(64, torch.arange(1, len(text) // 64 + 1))
    with torch.no_grad():
        hidden = net._model.hidden(torch.tensor([text]), sight)[0, len(prefix) : len(prefix) + len(ids)]
        return net._model.lm_head(hidden)


@pytest.mark.parametrize("contexts", [0, 1, 4])
def test_memory_is_that_of_training(fot, contexts):
    net = net_of(fot, "ours")
    prefix = PREFIX[: 64 * contexts + 24]
    check(SharedReader(net, 2048, 4096), prefix, lambda ids: fot_logits(net, prefix, 24, ids))


def test_memory_is_gone_on_with_by_whole_contexts(fot):
    """The second prefix parts from the first within what the first kept out of the memory, and the third far before."""
    net = net_of(fot, "ours")
    reader = SharedReader(net, 2048, 4096)
    for prefix in (
        PREFIX[:210],
        PREFIX[: 64 * 3 + 24],
        PREFIX[:70] + PREFIX[100 : 100 + 64 * 2 + 18],
        PREFIX[: 64 * 3 + 24],
    ):
        if (len(prefix) - 24) % 64 == 0:
            check(reader, prefix, lambda ids, prefix=prefix: fot_logits(net, prefix, 24, ids))
        else:
            reader.read(prefix, 20)


def test_queries_that_fill_the_local_context(fot):
    reader = SharedReader(net_of(fot, "ours"), 2048, 4096)
    assert reader.read(PREFIX, 60).local == 4
    with pytest.raises(
        SpliceError, match="a query and its answer of 64 tokens do not fit the model's local context of 64"
    ):
        reader.read(PREFIX, 64)


@pytest.mark.parametrize("tokens", [40, 4096], ids=["a few rows a pass", "all rows in one"])
@pytest.mark.parametrize("kind", ["ours", "transformers", "fot"])
def test_generation_is_token_after_token(llama, fot, kind, tokens):
    net = net_of(fot if kind == "fot" else llama, "ours" if kind == "fot" else kind)
    reader = SharedReader(net, 64, tokens)
    cache = reader.read(PREFIX, 30)
    said = reader.generate(cache, SUFFIXES, 10, lambda row, ids: row == 1 and len(ids) == 4)
    assert [len(ids) for ids in said] == [10, 4, 10, 10]
    paths = reader.score(cache, [grow(s, [ids]) for s, ids in zip(SUFFIXES, said, strict=True)])
    assert all(all(greedy) for ((_, greedy),) in paths)


def test_losses_are_those_of_a_full_pass(llama, fot):
    for directory, kind in ((llama, "ours"), (llama, "transformers")):
        losses = SharedReader(net_of(directory, kind), 64, 4096).losses(PREFIX)
        logits = full_logits(directory, kind, [], PREFIX)[:-1].log_softmax(-1)
        wanted = -logits[range(299), PREFIX[1:]]
        assert np.allclose(losses, wanted.numpy(), atol=1e-5, rtol=1e-5)
    net = net_of(fot, "ours")
    wanted = -fot_logits(net, [], 0, PREFIX)[:-1].log_softmax(-1)[range(299), PREFIX[1:]]
    assert np.allclose(SharedReader(net, 2048, 4096).losses(PREFIX), wanted.numpy(), atol=1e-5, rtol=1e-5)


def test_trees_read_what_answers_share_once():
    tree = grow([1, 2], [[5, 6, 7], [5, 6, 8], [5, 9], [4]])
    assert tree.tokens == (1, 2, 5, 6)
    assert tree.parents == (-1, 0, 1, 2)
    assert tree.paths == (((1, 5), (2, 6), (3, 7)), ((1, 5), (2, 6), (3, 8)), ((1, 5), (2, 9)), ((1, 4),))
    forked = grow([1], [[5, 6], [7, 8]])
    assert forked.tokens == (1, 5, 7)
    assert not forked.chain
    assert forked.depths == [0, 1, 1]
    assert forked.lines() == [[0, 1], [0, 2]]
    assert ancestors([forked], 4)[0].astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(("tokens", "most"), [(1, 1), (10, 100), (64, 3), (10**6, 10**6)])
def test_batches_hold_every_row_once_within_their_bounds(tokens, most):
    draw = np.random.default_rng(0)
    sizes, predicted = draw.integers(1, 30, 200).tolist(), draw.integers(1, 4, 200).tolist()
    found = list(batches(sizes, predicted, tokens, most))
    assert sorted(itertools.chain(*found)) == list(range(200))
    for batch in found:
        assert len(batch) == 1 or (
            len(batch) * max(sizes[r] for r in batch) <= tokens and sum(predicted[r] for r in batch) <= most
        )
    assert len(found) == 1 or tokens < 10**6
