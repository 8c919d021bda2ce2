"""The model is transformers' Llama: its tables to the bit, its logits to 1e-5; and reading in pieces is reading at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from splice.errors import SpliceError
from splice.train.cache import Cache, generate, read, read_prompt
from splice.train.fot import FoT
from splice.train.hf_config import config_to_hf
from splice.train.model import PRESETS, Llama, ModelConfig, initial
from splice.train.rope import Rope, cos_sin, extend, frequencies, rotate

BASE = ModelConfig(97, 64, 3, 4, 2, 16, 96, 256, Rope(original=64))
ROPES = {
    "default": BASE.rope,
    "linear": extend(BASE.rope, "linear", 256),
    "codellama": extend(BASE.rope, "codellama", 256),
    "yarn4": extend(BASE.rope, "yarn", 256),
    "yarn16": extend(BASE.rope, "yarn", 1024),
    "yarn1": extend(BASE.rope, "yarn", 64),
    "yarn with its own values": Rope("yarn", 5e5, 3.0, 64, attention_factor=1.5, beta_fast=8.0, beta_slow=2.0),
    "llama3": Rope("llama3", 5e5, 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0),
}
CONFIGS = {name: replace(BASE, rope=rope) for name, rope in ROPES.items()} | {
    "multi-head": replace(BASE, kv_heads=4),
    "multi-query": replace(BASE, kv_heads=1),
    "tied": replace(BASE, tied=True),
    "heads that over-fill the hidden size": replace(BASE, heads=8, kv_heads=2, head_size=10),
    "another epsilon": replace(BASE, norm_eps=0.1),
}


def make(config: ModelConfig, seed: int = 0) -> Llama:
    """Weights so large that positions, norms and heads all show in the logits."""
    draw = torch.Generator().manual_seed(seed)
    model = Llama(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0.0, 0.5 if name.endswith("norm.weight") else 0.2, generator=draw)
    return model


def make_ids(rows: int, tokens: int, seed: int = 1):
    return torch.randint(0, BASE.vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def to_transformers(model: Llama):
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(config_to_hf(model.config)))
    theirs.load_state_dict(model.state_dict())
    return theirs.eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name):
    model, ids = make(CONFIGS[name]), make_ids(2, 200)
    with torch.no_grad():
        logits = model(ids)
        assert logits.std() > 0.5
        torch.testing.assert_close(logits, to_transformers(model)(ids).logits, rtol=0, atol=1e-5)


def test_no_two_of_these_configurations_have_the_same_logits():
    """Or the comparison with transformers would not tell them apart."""
    ids = make_ids(1, 200)
    with torch.no_grad():
        logits = [make(replace(BASE, rope=rope))(ids) for name, rope in ROPES.items() if name != "yarn1"]
    for i, one in enumerate(logits):
        assert all((one - other).abs().max() > 1e-2 for other in logits[:i])


@pytest.mark.parametrize("head_size", [16, 100, 128])
@pytest.mark.parametrize("original", [6, 64, 2048, 4096])  # 6: nothing turns, the ramp has no width
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_tables_are_those_of_transformers_to_the_bit(rope, original, head_size):
    rope = replace(rope, original=original)
    config = replace(BASE, rope=rope, head_size=head_size, length=16 * original)
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
        transformers.LlamaConfig.from_dict(config_to_hf(config))
    )
    inverse, factor = frequencies(rope, head_size)
    assert torch.equal(inverse, theirs.inv_freq)
    assert factor == theirs.attention_scaling
    positions = torch.arange(0, 16 * original, max(1, original // 8))
    for ours, wanted in zip(cos_sin(rope, head_size, positions), theirs(torch.zeros(1), positions[None]), strict=True):
        assert torch.equal(ours, wanted[0])


@pytest.mark.parametrize(("original", "low", "high"), [(2048, 16, 41), (4096, 20, 46)])
def test_yarn_keeps_what_turns_often_and_slows_what_does_not_turn(original, low, high):
    """Known values for D = 128, b = 10 000, s = 16."""
    plain, _ = frequencies(Rope(original=original), 128)
    inverse, factor = frequencies(extend(Rope(original=original), "yarn", 16 * original), 128)
    assert factor == pytest.approx(1.27726, abs=5e-6)
    torch.testing.assert_close(inverse[: low + 1], plain[: low + 1], rtol=1e-6, atol=0)
    torch.testing.assert_close(inverse[high:], plain[high:] / 16, rtol=1e-6, atol=0)
    between = slice(low + 1, high)
    assert (inverse[between] < plain[between] * (1 - 1e-3)).all()
    assert (inverse[between] > plain[between] / 16 * (1 + 1e-3)).all()


def test_extension_changes_the_table_alone_and_once():
    rope = Rope(original=2048)
    assert extend(rope, "naive", 32768) == rope
    assert extend(rope, "linear", 32768) == Rope("linear", 10_000.0, 16.0, 2048)
    assert extend(rope, "yarn", 32768) == Rope("yarn", 10_000.0, 16.0, 2048)
    assert extend(rope, "yarn", 1024).factor == 1.0
    assert extend(rope, "codellama", 32768) == Rope("default", 1_000_000.0, 1.0, 2048)
    for method in ("linear", "codellama", "yarn"):
        with pytest.raises(SpliceError, match=r"already stretched \(linear, factor 16\)"):
            extend(extend(rope, "linear", 32768), method, 65536)
    assert extend(extend(rope, "yarn", 32768), "naive", 65536) == extend(rope, "yarn", 32768)


def test_what_rotation_leaves_of_a_product_is_the_distance():
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    cos, sin = cos_sin(Rope(), 16, torch.arange(300))
    products = rotate(q.expand(300, 16), cos, sin) @ rotate(k.expand(300, 16), cos, sin).T
    torch.testing.assert_close(products[7, 2], products[205, 200], rtol=1e-4, atol=1e-4)
    assert abs(products[7, 2] - products[7, 3]) > 1e-2


@pytest.mark.parametrize("name", ["default", "yarn4", "multi-query"])
@pytest.mark.parametrize("pieces", [[200], [1] * 12, [7, 1, 1, 90, 3]])
@pytest.mark.parametrize("chunk", [64, 2048])
def test_reading_in_pieces_is_one_forward_pass(name, pieces, chunk):
    model, ids, cache = make(CONFIGS[name]), make_ids(2, sum(pieces)), Cache()
    logits = torch.cat([read(model, piece, cache, chunk) for piece in ids.split(pieces, 1)], 1)
    assert (cache.length, cache.local) == (sum(pieces), sum(pieces))
    with torch.no_grad():
        torch.testing.assert_close(logits, model(ids), rtol=0, atol=2e-5)


@pytest.mark.parametrize("rope", ["default", "yarn4"])
@pytest.mark.parametrize("pieces", [[160], [32] * 5, [1] * 70, [50, 1, 60, 49]])
def test_reading_with_memory_is_one_forward_pass_over_an_example(rope, pieces):
    fot = FoT(layers=(1,), local_context=32, cross_batch_range=4)
    model, cache = make(replace(CONFIGS[rope], fot=fot)), Cache()
    ids = make_ids(2, 160)
    seen = sum(pieces)
    logits = torch.cat([read(model, piece, cache) for piece in ids[:, :seen].split(pieces, 1)], 1)
    with torch.no_grad():
        whole = model(ids)
        torch.testing.assert_close(logits, whole[:, :seen], rtol=0, atol=2e-5)
        without = make(replace(model.config, fot=replace(fot, layers=())))(ids)
    torch.testing.assert_close(whole[:, :32], without[:, :32], rtol=0, atol=2e-5)
    assert (whole[:, 32:] - without[:, 32:]).abs().max() > 1e-2  # the memory is seen


@pytest.mark.parametrize("rope", ["default", "yarn4"])
@pytest.mark.parametrize(
    ("tokens", "last", "contexts"),
    [(96, 32, [32, 32, 32]), (100, 16, [32, 32, 20, 16]), (70, 64, [32, 6, 32]), (20, 32, [20]), (33, 32, [1, 32])],
)
def test_the_end_of_a_prompt_is_a_context_of_its_own(tokens, last, contexts, rope, literal):
    """Memory layers see the contexts before it in full, by keys at position 0."""
    fot = FoT(layers=(0, 2), local_context=32, last_context=last)
    model, ids, cache = make(replace(CONFIGS[rope], fot=fot)), make_ids(1, tokens), Cache()
    context = torch.arange(len(contexts)).repeat_interleave(torch.tensor(contexts))
    positions = torch.cat([torch.arange(size) for size in contexts])
    back = context[:, None] - context[None, :]
    own = (back == 0) & (positions[:, None] >= positions[None, :])
    weights = {name: weight.detach().double() for name, weight in model.named_parameters()}
    expected = literal.llama(model.config, weights, ids[0], positions, torch.cat((own, back > 0), 1))
    found = read_prompt(model, ids, cache)
    torch.testing.assert_close(found, expected[-1:].float(), rtol=0, atol=1e-4)
    assert (cache.length, cache.local) == (tokens, contexts[-1])


def test_an_empty_prompt_is_refused():
    with pytest.raises(SpliceError, match="empty prompt"):
        generate(make(BASE), make_ids(1, 0), 3)


@pytest.mark.parametrize("name", ["default", "yarn4", "tied"])
def test_generation_is_the_greedy_one_of_transformers(name):
    model, ids = make(CONFIGS[name]), make_ids(3, 11)
    expected = to_transformers(model).generate(ids, max_new_tokens=40, do_sample=False, pad_token_id=0)
    found = generate(model, ids, 40)
    assert torch.equal(found, expected[:, 11:])
    assert found.unique().numel() > 10


@pytest.mark.parametrize("name", PRESETS)
def test_the_number_of_parameters_is_that_of_the_weights(name):
    config = PRESETS[name]
    with torch.device("meta"):
        weights = dict(Llama(config).named_parameters())
    assert config.parameters == sum(weight.numel() for weight in weights.values())
    used = [w.numel() for n, w in weights.items() if w.dim() == 2 and (config.tied or "embed" not in n)]
    assert config.matmul_parameters == sum(used)


def test_first_weights_follow_from_seed_and_name():
    shape = torch.Size((200, 300))
    one = initial("model.layers.0.mlp.up_proj.weight", shape, BASE, 0)
    assert torch.equal(one, initial("model.layers.0.mlp.up_proj.weight", shape, BASE, 0))
    assert not torch.equal(one, initial("model.layers.1.mlp.up_proj.weight", shape, BASE, 0))
    assert not torch.equal(one, initial("model.layers.0.mlp.up_proj.weight", shape, BASE, 1))
    assert one.std().item() == pytest.approx(0.02, rel=0.02)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        last = initial(f"model.layers.0.{name}.weight", shape, BASE, 0)
        assert last.std().item() == pytest.approx(0.02 / math.sqrt(2 * BASE.layers), rel=0.02)
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        assert (initial(f"{name}.weight", torch.Size((64,)), BASE, 0) == 1).all()
