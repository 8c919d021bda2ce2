"""Models of transformers: those with plain attention share a prefix, exactly; the others are found out, and read whole."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from splice.errors import SpliceError
from splice.eval.hub import HubNet, why_whole
from splice.eval.reader import SharedReader
from splice.eval.tree import grow
from splice.eval.whole import WholeReader

PREFIX = torch.randint(3, 640, (120,), generator=torch.Generator().manual_seed(1)).tolist()
TREES = [
    ([5, 9, 11], [[40, 41], [40, 42, 43], [40, 44, 45, 46], [50, 51]]),
    ([7], [[60]]),
    ([8, 8, 4, 100, 33], [[1, 2, 3], [70]]),
]
SIZES = {
    "vocab_size": 640, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SHARED = {
    "gpt2": transformers.GPT2Config(vocab_size=640, n_embd=64, n_layer=2, n_head=4, n_positions=512),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=16),
    "phi": transformers.PhiConfig(**SIZES),
    "olmo2": transformers.Olmo2Config(**SIZES),
    "granite": transformers.GraniteConfig(**SIZES, attention_multiplier=0.3, logits_scaling=2.0),
    "cohere": transformers.CohereConfig(**SIZES, logit_scale=0.3),
    "mixtral": transformers.MixtralConfig(**SIZES, sliding_window=None, num_local_experts=4),
}
WHOLE = {
    "mistral with a window": (transformers.MistralConfig(**SIZES, sliding_window=32), "slides over a window of 32 tokens"),
    "gemma2": (transformers.Gemma2Config(**SIZES, head_dim=16), "its layers are sliding_attention"),
    "gemma2 without windows": (
        transformers.Gemma2Config(**SIZES, head_dim=16, layer_types=["full_attention"] * 2, attn_logit_softcapping=50.0),
        "its attention takes softcap",
    ),
    "gpt_oss without windows": (
        transformers.GptOssConfig(**SIZES, head_dim=16, layer_types=["full_attention"] * 2, num_local_experts=4),
        "its attention takes s_aux",
    ),
    "bloom": (transformers.BloomConfig(vocab_size=640, hidden_size=64, n_layer=2, n_head=4), "it fails under ours|its logits differ"),
    "mamba": (transformers.MambaConfig(vocab_size=640, hidden_size=64, num_hidden_layers=2, state_size=8), "its layers are linear_attention"),
}  # fmt: skip


def net_of(directory):
    return HubNet(directory, torch.float32, torch.device("cpu"))


def wanted(net, prefix, suffix, answer):
    """Log-likelihood of each token of an answer, and whether it is the likeliest, by one plain pass."""
    ids = torch.tensor([prefix + suffix + answer])
    with torch.no_grad():
        logits = net.model(input_ids=ids, use_cache=False).logits[0, len(prefix + suffix) - 1 : -1]
    return logits.log_softmax(-1)[range(len(answer)), answer], (logits.argmax(-1) == torch.tensor(answer)).tolist()


def check(reader, plain):
    cache = reader.read(PREFIX, 8)
    read = reader.score(cache, [grow(*tree) for tree in TREES])
    for (suffix, answers), paths in zip(TREES, read, strict=True):
        for answer, (likelihoods, greedy) in zip(answers, paths, strict=True):
            exact, likeliest = wanted(plain, PREFIX, suffix, answer)
            assert torch.allclose(torch.tensor(likelihoods), exact, atol=1e-5, rtol=1e-5)
            assert greedy == likeliest
    said = reader.generate(cache, [suffix for suffix, _ in TREES], 6, lambda row, ids: False)
    for (suffix, _), ids in zip(TREES, said, strict=True):
        assert all(wanted(plain, PREFIX, suffix, ids)[1])
    losses = reader.losses(PREFIX)
    exact, _ = wanted(plain, [], PREFIX[:1], PREFIX[1:])
    assert torch.allclose(torch.from_numpy(losses), -exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", SHARED)
def test_plain_attention_shares_a_prefix(make_model, kind):
    directory = make_model(SHARED[kind])
    net = net_of(directory)
    assert why_whole(net) is None
    check(SharedReader(net, 32, 4096), net_of(directory))


@pytest.mark.parametrize("kind", WHOLE)
def test_other_models_are_found_out_and_read_whole(make_model, kind):
    config, why = WHOLE[kind]
    directory = make_model(config)
    net = net_of(directory)
    assert re.search(why, why_whole(net))
    check(WholeReader(net.model), net_of(directory))


def test_a_model_that_answers_otherwise_is_found_out(make_model, monkeypatch):
    """Attention that is off by little: the probe compares logits, not names."""
    from splice.eval import hub

    directory = make_model(SHARED["qwen2"])
    net = net_of(directory)
    plain = hub._attention

    def off(module, query, key, value, mask, scaling=None, **others):
        return plain(module, query, key, value, mask, scaling * 1.01, **others)

    transformers.AttentionInterface.register(hub.ATTENTION, off)
    try:
        assert "its logits differ by" in why_whole(net)
    finally:
        transformers.AttentionInterface.register(hub.ATTENTION, plain)
    check(WholeReader(net.model), net_of(directory))  # its own attention is back


def test_a_prompt_is_read_whole_once_and_its_branches_go_on(make_model):
    net = net_of(make_model(SHARED["qwen2"]))
    reader, fed = WholeReader(net.model), []
    feed = reader._feed
    reader._feed = lambda ids, past, last: (fed.append(len(ids)), feed(ids, past, last))[1]
    reader.score(PREFIX, [grow([1, 2], [[5], [6], [7]])])
    assert fed == [122]
    fed.clear()
    reader.score(PREFIX, [grow([1, 2], [[5, 6], [5, 7], [8, 9, 10]])])
    assert fed == [122, 1, 1, 1]


def test_positions_that_depend_on_the_length_are_found_out(make_model):
    """A probe is too short to see it."""
    for kind, more in (
        ("dynamic", {"factor": 2.0}),
        ("longrope", {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 128}),
    ):
        rope = {"rope_type": kind, "rope_theta": 10000.0, **more}
        net = net_of(make_model(transformers.LlamaConfig(**SIZES, rope_parameters=rope)))
        assert f"({kind} RoPE)" in why_whole(net)


def test_logits_that_are_no_numbers(make_model):
    net = net_of(make_model(SHARED["qwen2"]))
    assert why_whole(net) is None
    shared, whole = SharedReader(net, 32, 4096), WholeReader(net_of(make_model(SHARED["qwen2"])).model)
    for model in (net.model, whole._model):
        model.model.norm.weight[0] = float("nan")
    for reader in (shared, whole):
        prefix = reader.read(PREFIX, 8)
        for ask in (
            lambda reader=reader, prefix=prefix: reader.score(prefix, [grow([1], [[2]])]),
            lambda reader=reader, prefix=prefix: reader.generate(prefix, [[1]], 2, lambda row, ids: False),
            lambda reader=reader: reader.losses(PREFIX),
        ):
            with pytest.raises(SpliceError, match="logits are no finite numbers"):
                ask()


def test_what_cannot_be_loaded(make_model, tmp_path):
    directory = make_model(SHARED["qwen2"])
    (directory / "config.json").write_text('{"model_type": "never_heard_of"}')
    with pytest.raises(SpliceError, match="never_heard_of"):
        net_of(directory)
