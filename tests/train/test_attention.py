"""attention(): equal to one softmax a query, values and gradients, on every path that a machine can take."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from splice.train import attention as module
from splice.train.attention import BLOCK, attention, block_mask, look
from splice.train.fot import FoT
from splice.train.model import Llama, ModelConfig
from splice.train.rope import Rope

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}  # of the largest value


def draw_inputs(examples, length, heads, kv_heads, size=8, seed=0):
    """q, k, v, memory k, float64, and a cotangent of the output. Scores reach +-8: no softmax is flat."""
    draw = torch.Generator().manual_seed(seed)
    q, k, v, raw, out = (
        torch.randn(examples, h, length, size, generator=draw, dtype=torch.float64)
        for h in (heads, kv_heads, kv_heads, kv_heads, heads)
    )
    return (2 * q, k, v, raw), out


def flat(x):
    """[B, H, T, D] -> [H, B T, D]"""
    return torch.cat(list(x), 1)


def whose(documents):
    """(example, document) of every token of the micro-batch, or None."""
    return documents and [(b, d) for b, row in enumerate(documents) for d in row]


def gradients(function, inputs, cotangent):
    """Output and gradients; an input that plays no part has gradient 0."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    return out.detach(), *torch.autograd.grad(
        (out * cotangent).sum(), leaves, allow_unused=True, materialize_grads=True
    )


def reference(literal, inputs, cotangent, context, seen, documents=None):
    """As `gradients`, of the softmax a query. Without memory its keys play no part."""

    def run(q, k, v, raw=None):
        out = literal.attention_by_query(
            flat(q), flat(k), flat(v), flat(k if raw is None else raw), context, seen, whose(documents)
        )
        return out.unflatten(1, (len(q), -1)).transpose(0, 1)

    return gradients(run, inputs, cotangent)


def by_mask(literal, inputs, cotangent, context, seen, documents=None):
    """As `reference`, by the dense mask over [rotated | raw] keys; fit for a thousand tokens."""
    examples, _, length, _ = inputs[0].shape
    mask = quick_masks(examples * length, context, seen, whose(documents)).to(inputs[0].device)

    def run(q, k, v, raw=None):
        out = literal.masked_attention(flat(q), flat(k), flat(v), flat(k if raw is None else raw), mask)
        return out.unflatten(1, (len(q), -1)).transpose(0, 1)

    return gradients(run, inputs, cotangent)


def quick_masks(n, context, seen, documents):
    """`literal.masks` for many tokens at once; they are compared below."""
    q, k = torch.arange(n)[:, None], torch.arange(n)[None, :]
    rows = q // context - k // context
    own = torch.ones(n, n, dtype=torch.bool)
    if documents is not None:
        names = {name: i for i, name in enumerate(dict.fromkeys(documents))}
        number = torch.tensor([names[name] for name in documents])
        own = number[:, None] == number[None, :]
    raw = (rows > 0) & (rows < torch.tensor(seen)[q // context]) & own
    return torch.cat(((rows == 0) & (k <= q) & own, raw), 1)


def sight_of(examples, length, fot, documents, device=CPU):
    return look(examples, length, fot, None if documents is None else torch.tensor(documents), device)


DOCUMENTS = {
    "none": None,
    "mid-context": [[0] * 3 + [1] * 9 + [2] * 12, [0] * 6 + [1] * 1 + [2] * 16 + [3]],
    "gaps": [[2] * 5 + [7] * 8 + [20] * 11, [0] * 11 + [23] * 13],
    "one": [[0] * 24] * 2,
    "each": [list(range(24))] * 2,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("examples", "per_example", "r", "heads", "kv_heads"),
    [
        (1, 4, 3, 4, 4),  # an example sees all of itself
        (2, 4, 6, 4, 2),  # the known value: negatives from another example
        (3, 2, 4, 4, 1),  # one key-value head; negatives from two examples
        (4, 1, 2, 2, 2),  # an example a context: negatives alone
        (2, 3, 50, 2, 1),  # further than there are contexts
        (2, 4, 1, 2, 2),  # less than its own example
        (2, 2, 0, 2, 2),  # no memory at all
    ],
)
def test_memory_layers_are_one_softmax_over_local_and_memory_keys(
    literal, agree, examples, per_example, r, heads, kv_heads, dtype
):
    context, length = 6, 6 * per_example
    inputs, cotangent = draw_inputs(examples, length, heads, kv_heads)
    inputs = [x.to(dtype) for x in inputs]
    sight = sight_of(examples, length, FoT((0,), context, r), None)
    got = gradients(lambda q, k, v, raw: attention(q, k, v, sight, raw), inputs, cotangent.to(dtype))
    seen = literal.visible(examples * per_example, r, per_example)
    wanted = reference(literal, [x.double() for x in inputs], cotangent, context, seen)
    for name, a, b in zip(("out", "q", "k", "v", "memory k"), got, wanted, strict=True):
        if r == 0 and name == "memory k":
            assert not a.any()
            assert not b.any()
        else:
            agree(a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("layer", ["memory", "local", "plain"])
def test_documents_and_local_contexts(literal, agree, layer, documents, dtype):
    """Memory layers, the local layers of an FoT model and layers of a model without FoT; two examples of 24 tokens."""
    documents = DOCUMENTS[documents]
    inputs, cotangent = draw_inputs(2, 24, 4, 2)
    inputs = [x.to(dtype) for x in (inputs if layer == "memory" else inputs[:3])]
    context = 24 if layer == "plain" else 6
    sight = sight_of(2, 24, None if layer == "plain" else FoT((0,), 6, 6), documents)
    got = gradients(lambda q, k, v, raw=None: attention(q, k, v, sight, raw), inputs, cotangent.to(dtype))
    seen = literal.visible(8, 6, 4) if layer == "memory" else [1] * 8
    wanted = reference(literal, [x.double() for x in inputs], cotangent, context, seen, documents)
    for a, b in zip(got, wanted, strict=True):
        if b.abs().max() > 1e-9:
            agree(a, b, TOLERANCE[dtype])
        else:  # a document a token: its softmax is over one key, scores have no slope
            assert a.abs().max() < 1e-6
    if documents == DOCUMENTS["each"]:
        agree(got[0], inputs[2].repeat_interleave(2, 1), 1e-6)  # every token sees its own value alone


@settings(max_examples=80)
@given(
    examples=st.integers(1, 3),
    per_example=st.integers(1, 4),
    context=st.integers(1, 5),
    r=st.integers(0, 9),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    cuts=st.none() | st.lists(st.integers(0, 19), max_size=5),
    seed=st.integers(0, 99),
)
def test_any_geometry(literal, agree, examples, per_example, context, r, groups, cuts, seed):
    length = context * per_example
    documents = cuts if cuts is None else [[sum(c <= t for c in cuts) for t in range(length)]] * examples
    if documents is not None:
        documents = [[min(d, length - 1) for d in row] for row in documents]
    inputs, cotangent = draw_inputs(examples, length, *groups, size=4, seed=seed)
    sight = sight_of(examples, length, FoT((0,), context, r), documents)
    got = gradients(lambda q, k, v, raw: attention(q, k, v, sight, raw), inputs, cotangent)
    seen = literal.visible(examples * per_example, r, per_example)
    wanted = reference(literal, inputs, cotangent, context, seen, documents)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-12 * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("documents", ["none", "mid-context", "each"])
def test_the_references_agree_and_so_do_two_softmaxes_merged_by_their_log_sum_exp(literal, agree, documents):
    documents = DOCUMENTS[documents]
    (q, k, v, raw), cotangent = draw_inputs(2, 24, 4, 2)
    seen = literal.visible(8, 6, 4)
    mask = literal.masks(48, 6, seen, whose(documents))
    assert torch.equal(mask, quick_masks(48, 6, seen, whose(documents)))
    one = reference(literal, (q, k, v, raw), cotangent, 6, seen, documents)
    for a, b in zip(by_mask(literal, (q, k, v, raw), cotangent, 6, seen, documents), one, strict=True):
        assert (a - b).abs().max() <= 1e-12 * max(1.0, b.abs().max().item())

    q, k, v, raw = (flat(x).repeat_interleave(4 // x.shape[1], 0) for x in (q, k, v, raw))
    local, memory = (q @ x.transpose(1, 2) / 8**0.5 for x in (k, raw))
    local, memory = local.masked_fill(~mask[:, :48], -torch.inf), memory.masked_fill(~mask[:, 48:], -torch.inf)
    share = torch.sigmoid(local.logsumexp(-1) - memory.logsumexp(-1))[..., None]  # 1 where there is no memory
    far = memory.softmax(-1).nan_to_num() @ v
    merged = share * (local.softmax(-1) @ v) + (1 - share) * far
    agree(merged, flat(one[0]), 1e-13)


@pytest.mark.parametrize("fot", [None, FoT((1,), 8, 6)], ids=["plain", "fot"])
@pytest.mark.parametrize("masked", [True, False])
def test_no_gradient_crosses_a_document(randomised, fot, masked):
    """d loss(document) / d embedding of a token, through three layers, is exactly 0 for the tokens of others."""
    config = ModelConfig(23, 16, 3, 4, 2, 8, 24, 32, Rope(original=32), fot)
    model = randomised(Llama(config, torch.float64).double())
    kept = []
    model.model.embed_tokens.register_forward_hook(lambda _, __, out: kept.append(out))
    documents = torch.tensor([[0] * 3 + [1] * 10 + [2] * 19, [0] * 16 + [1] * 16])  # the last one starts with a context
    sight = look(2, 32, fot, documents if masked else None, CPU)
    draw = torch.Generator().manual_seed(0)
    logits = model(torch.randint(0, 23, (2, 32), generator=draw), sight=sight)
    slope = torch.randn(logits.shape, generator=draw, dtype=torch.float64)
    for example, document in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
        own = torch.zeros(2, 32, dtype=torch.bool)
        own[example] = documents[example] == document
        (grad,) = torch.autograd.grad((logits * slope)[own].sum(), kept[0], retain_graph=True)
        touched = grad.abs().sum(-1) > 0
        assert touched[own].all()
        if masked:
            assert not touched[~own].any()
        else:  # all before it in the example is seen, and with FoT's negatives tokens of the other example
            places = own[example].nonzero().flatten()
            assert touched[example, : places[0]].all()
            assert not touched[example, places[-1] + 1 :].any()
            assert touched[1 - example].any().item() == (fot is not None and example == 1)


# FlexAttention: what follows takes its path on a CPU, which looks have no masks for


def flex_sight(examples, length, fot, documents):
    """The sight that CUDA would be given, and the one of the CPU."""
    plain = sight_of(examples, length, fot, documents)
    layers = ([False] if documents is not None else []) + ([True] if fot else [])
    masks = {memory: block_mask(plain, examples * length, memory) for memory in layers}
    return dataclasses.replace(plain, masks=masks), plain


def long_documents(name, length):
    """[3, length]: that begin at, beside and within blocks of 128; that fill contexts; one a token; one in all."""
    edges = {"cut": ([0, 100, 128, 300], [0, 127, 129, 257, 258], [0]), "contexts": ([0, 256], [0, 256], [0, 256])}
    if name in edges:
        return [[sum(e <= t for e in row) - 1 for t in range(length)] for row in edges[name]]
    return {"none": None, "each": [list(range(length))] * 3, "one": [[0] * length] * 3}[name]


FLEX = [
    (FoT((0,), 256, 5), "none"),
    (FoT((0,), 256, 1), "cut"),
    (FoT((0,), 256, 5), "cut"),
    (FoT((0,), 128, 2), "cut"),
    (FoT((0,), 128, 9), "contexts"),
    (FoT((0,), 512, 2), "one"),
    (FoT((0,), 256, 5), "each"),
    (None, "cut"),
    (None, "one"),
    (None, "each"),
]


def expected(literal, fot, length, documents, memory):
    """bool [N, N or 2 N] of three examples, and what it is made of."""
    context = fot.local_context if fot else length
    per_example = length // context
    seen = literal.visible(3 * per_example, fot.cross_batch_range, per_example) if memory else [1] * 3 * per_example
    mask = quick_masks(3 * length, context, seen, whose(documents))
    return mask if memory else mask[:, : 3 * length]


@pytest.mark.parametrize(("fot", "documents"), FLEX)
def test_blocks_are_listed_as_what_they_are(literal, fot, documents):
    """A block of keys that a block of queries sees whole is full, one that it sees in part partial, others are absent."""
    documents = long_documents(documents, 512)
    sight, _ = flex_sight(3, 512, fot, documents)
    for memory, mask in sight.masks.items():
        dense = expected(literal, fot, 512, documents, memory)
        blocks = dense.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).transpose(1, 2).flatten(2)
        for name, wanted in (("full_kv", blocks.all(2)), ("kv", blocks.any(2) & ~blocks.all(2))):
            count, index = (getattr(mask, f"{name}_{what}")[0, 0] for what in ("num_blocks", "indices"))
            listed = torch.zeros_like(wanted)
            for q, (many, order) in enumerate(zip(count.tolist(), index.tolist(), strict=True)):
                assert order[:many] == sorted(set(order[:many]))
                listed[q, order[:many]] = True
            assert torch.equal(listed, wanted), name
        i, j = torch.arange(dense.shape[0])[:, None], torch.arange(dense.shape[1])[None, :]
        assert torch.equal(mask.mask_mod(torch.tensor(0), torch.tensor(0), i, j), dense)


@pytest.mark.parametrize(("fot", "documents"), FLEX)
def test_flex_attention_equals_the_dense_mask(literal, agree, monkeypatch, fot, documents):
    """Uncompiled FlexAttention: its inputs, their order and the predicate. It goes by the predicate and not by blocks."""
    monkeypatch.setattr(module, "_compiled", lambda function: function)
    documents = long_documents(documents, 512)
    sight, plain = flex_sight(3, 512, fot, documents)
    q, k, v, raw = (x.float() for x in draw_inputs(3, 512, 2, 1, size=16)[0])
    for memory in sight.masks:
        with torch.no_grad():
            got = attention(q, k, v, sight, raw if memory else None)
            beside = attention(q, k, v, plain, raw if memory else None)
        mask = quick_masks(1536, *geometry(literal, fot, memory), whose(documents))
        wanted = literal.masked_attention(*(flat(x.double()) for x in (q, k, v, raw)), mask)
        agree(flat(got), wanted, 1e-5)
        agree(flat(beside), wanted, 1e-5)


def geometry(literal, fot, memory):
    """L and n_i of three examples of 512 tokens."""
    context = fot.local_context if fot else 512
    rows = 3 * 512 // context
    return context, literal.visible(rows, fot.cross_batch_range, 512 // context) if memory else [1] * rows


@pytest.mark.skipif(
    not (shutil.which("g++") and Path(sysconfig.get_path("include"), "Python.h").exists()), reason="needs a compiler"
)
def test_flex_attention_compiled_goes_by_the_blocks(agree):
    """Here a block that is wrongly absent or full changes the result. Once, since compiling takes a while."""
    documents = long_documents("cut", 512)
    sight, plain = flex_sight(3, 512, FoT((0,), 256, 5), documents)
    q, k, v, raw = (x.float() for x in draw_inputs(3, 512, 2, 1, size=16)[0])
    with torch.no_grad():
        got = attention(q, k, v, sight, raw)
    agree(got, attention(q, k, v, plain, raw), 1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_compiled_blocks_take_the_flex_path_without_a_break(randomised, agree, masked):
    """As the trainer compiles them on CUDA; traced once a layer, for documents that differ from one step to the next."""
    fot = FoT((1,), BLOCK, 3)
    model = randomised(Llama(ModelConfig(23, 16, 2, 4, 2, 8, 24, 256, fot=fot)))
    compiled = copy.deepcopy(model)
    counter = CompileCounterWithBackend("aot_eager")
    for block in compiled.model.layers:
        block.compile(backend=counter, fullgraph=True)
    ids = torch.arange(512).view(2, 256) % 23
    with torch.no_grad():
        for cut in (50, 200):
            documents = [[int(t >= cut) for t in range(256)], [0] * 256] if masked else None
            flex, plain = flex_sight(2, 256, fot, documents)
            agree(compiled(ids, sight=flex), model(ids, sight=plain), 1e-5)
    assert counter.frame_count == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("fot", "documents"), [*FLEX[:4], (None, "cut"), (FoT((0,), 64, 5), "cut"), (None, "none")])
def test_on_cuda(literal, agree, fot, documents, dtype):
    cuda = torch.device("cuda")
    documents = long_documents(documents, 512)
    sight = sight_of(3, 512, fot, documents, cuda)
    aligned = fot is None or fot.local_context % BLOCK == 0
    assert set(sight.masks) == (({True} if fot else set()) | ({False} if documents else set()) if aligned else set())
    inputs, cotangent = draw_inputs(3, 512, 4, 2, size=64)
    inputs, cotangent = [x.to(cuda, dtype) for x in inputs], cotangent.to(cuda, dtype)
    for memory in [True, False] if fot else [False]:
        chosen = inputs if memory else inputs[:3]
        got = gradients(lambda q, k, v, raw=None: attention(q, k, v, sight, raw), chosen, cotangent)
        context, seen = geometry(literal, fot, memory)
        wanted = by_mask(literal, [x.double() for x in chosen], cotangent.double(), context, seen, documents)
        for a, b in zip(got, wanted, strict=True):
            agree(a, b, 1e-4 if dtype == torch.float32 else 2e-2)
