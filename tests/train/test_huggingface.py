"""Hugging Face directories: what we write transformers loads, what it writes we load, and what is wrong is said."""

from __future__ import annotations

import fnmatch
import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import safetensors.torch

from splice.errors import BuildFailed, SpliceError
from splice.tokenizer import load_tokenizer
from splice.train import hf_write
from splice.train.fot import FoT
from splice.train.hf_config import config_from_hf, config_to_hf
from splice.train.hf_read import locate, parameter_shapes, read_config, read_weights
from splice.train.hf_write import write_model
from splice.train.model import PRESETS, Llama, ModelConfig
from splice.train.rope import Rope, extend

BASE = ModelConfig(97, 64, 2, 4, 2, 16, 96, 256, Rope(original=64))
TIED = replace(BASE, tied=True)
CONFIGS = {
    **PRESETS,
    "short rope": BASE,
    "linear": replace(BASE, rope=extend(BASE.rope, "linear", 256)),
    "codellama": replace(BASE, rope=extend(BASE.rope, "codellama", 256)),
    "yarn": replace(BASE, rope=extend(BASE.rope, "yarn", 256)),
    "yarn with its own values": replace(BASE, length=192, rope=Rope("yarn", 5e5, 3.0, 64, 1.5, 8.0, 2.0)),
    "llama3": replace(BASE, rope=Rope("llama3", 5e5, 8.0, 64, low_freq_factor=1.5, high_freq_factor=3.0)),
    "one key-value head": replace(BASE, kv_heads=1, norm_eps=1e-5),
    "fot": replace(BASE, fot=FoT((0, 1), 32, 7, 16)),
    "fot of the paper": replace(PRESETS["3b"], length=32768, fot=FoT((6, 12, 18))),
    "fot, its own context only": replace(BASE, fot=FoT((1,), 32, 0)),
    "tied": TIED,
}
SMALL = {name: config for name, config in CONFIGS.items() if config.vocab_size == 97}
IDS = torch.arange(180)[None] * 31 % 97
MANIFEST = {"name": "x", "bos_id": 0, "eos_id": 1, "pad_id": 2, "fingerprint": "f"}


def make(config: ModelConfig, seed: int = 0) -> Llama:
    draw = torch.Generator().manual_seed(seed)
    model = Llama(config).eval()
    with torch.no_grad():
        for _, weight in model.named_parameters():
            weight.normal_(0.0, 0.2, generator=draw)
    return model


def logits_of(model, ids=IDS):
    with torch.no_grad():
        out = model(ids)
    return out if isinstance(out, torch.Tensor) else out.logits


def load(directory: Path, config: ModelConfig | None = None) -> Llama:
    """The model of a directory, as a trainer would fill it."""
    config = config or read_config(directory)
    model = Llama(config).eval()
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in read_weights(directory, config):
            own.pop(name).copy_(weight)
    assert not own
    return model


def export(model: Llama, output: Path, dtype=torch.float32, **more) -> Path:
    more = {"tokenizer": None, "tokenizer_ids": MANIFEST} | more
    write_model(output, model.config, model.named_parameters(), dtype=dtype, **more)
    return output


@pytest.fixture(scope="module")
def model() -> Llama:
    return make(BASE)


@pytest.fixture
def directory(model: Llama, tmp_path: Path) -> Path:
    """An export, to be spoilt."""
    return export(model, tmp_path / "model")


@pytest.fixture
def warnings(caplog, monkeypatch):
    """What transformers warns of."""
    for name in ("transformers",):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    caplog.set_level(logging.WARNING)
    return caplog


def edit(directory: Path, file: str = "config.json", /, **changes) -> None:
    values = json.loads((directory / file).read_text()) | changes
    (directory / file).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def tensors_of(model: Llama) -> dict:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ------------------------------------------------------------------------------------------------------- config.json


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_comes_back_from_its_json(name):
    config = CONFIGS[name]
    for tokenizer in (None, MANIFEST):
        values = json.loads(json.dumps(config_to_hf(config, tokenizer)))
        assert config_from_hf(values, "config.json") == config


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_the_config_without_a_warning_and_writes_it_back(name, tmp_path, warnings):
    config = CONFIGS[name]
    theirs = transformers.LlamaConfig.from_dict(json.loads(json.dumps(config_to_hf(config, MANIFEST, torch.bfloat16))))
    assert not warnings.records
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 1, 2)
    assert theirs.dtype == torch.bfloat16
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path) == config


@pytest.mark.parametrize("name", ["short rope", "linear", "codellama", "yarn", "yarn with its own values", "llama3"])
def test_either_form_of_the_rope_keys_gives_the_same_model(name):
    config = SMALL[name]
    both = config_to_hf(config)
    new = {key: value for key, value in both.items() if key not in ("rope_theta", "rope_scaling")}
    old = {key: value for key, value in both.items() if key != "rope_parameters"}
    renamed = old | {"rope_scaling": old["rope_scaling"] and dict(old["rope_scaling"])}
    if renamed["rope_scaling"]:
        renamed["rope_scaling"]["rope_type"] = renamed["rope_scaling"].pop("type")
    model = make(config)
    for values in (both, new, old, renamed):
        assert config_from_hf(values, "config.json") == config
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(json.loads(json.dumps(values))))
        theirs.load_state_dict(model.state_dict())
        torch.testing.assert_close(logits_of(model), logits_of(theirs), rtol=0, atol=1e-5)


def test_yarn_names_the_original_context_in_both_forms():
    values = config_to_hf(SMALL["yarn"])
    assert values["rope_parameters"]["original_max_position_embeddings"] == 64
    assert values["rope_scaling"]["original_max_position_embeddings"] == 64
    assert "attention_factor" not in values["rope_parameters"]


def test_ids_of_the_tokenizer_are_null_where_there_is_none():
    for tokenizer in (None, {"bos_id": None, "eos_id": None, "pad_id": None}):
        values = config_to_hf(BASE, tokenizer)
        assert [values[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [None] * 3
    values = config_to_hf(BASE, {"bos_id": None, "eos_id": 7, "pad_id": 7})
    assert [values[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [None, 7, 7]


def test_fot_has_longllamas_keys():
    values = config_to_hf(CONFIGS["fot of the paper"], dtype=torch.bfloat16)
    assert (values["model_type"], values["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert (values["max_position_embeddings"], values["fot_length"]) == (2048, 32768)  # the positions it has
    assert (values["mem_layers"], values["mem_positionals"], values["mem_dtype"]) == ([6, 12, 18], True, "bfloat16")
    assert (values["last_context_length"], values["cross_batch_range"]) == (1024, 15)
    assert values["fot_local_context"] == 2048
    assert "mem_layers" not in config_to_hf(BASE)


SIZES = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_what_a_config_does_not_say_is_transformers_default():
    config = config_from_hf(SIZES, "config.json")
    theirs = transformers.LlamaConfig(**{key: value for key, value in SIZES.items() if key != "model_type"})
    assert config == config_from_hf(theirs.to_dict(), "config.json")
    assert config == ModelConfig(97, 64, 2, 4, 4, 16, 96, 2048, Rope(original=2048), norm_eps=1e-6)
    null = dict.fromkeys(
        ("head_dim", "num_key_value_heads", "rope_scaling", "rope_parameters", "mem_layers", "hidden_act")
    )
    assert config_from_hf(SIZES | null, "config.json") == config


@pytest.mark.parametrize(
    ("values", "rope"),
    [
        ({"rope_theta": 5e5}, Rope("default", 5e5, original=256)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, Rope("linear", factor=2.0, original=256)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, Rope("yarn", factor=2.0, original=256)),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "finetuned": True}},
            Rope("yarn", factor=4.0, original=64),
        ),
        (
            {"original_max_position_embeddings": 32, "rope_parameters": {"rope_type": "yarn", "factor": 8.0}},
            Rope("yarn", factor=8.0, original=32),
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 2e4, "factor": 4.0, "truncate": True}},
            Rope("yarn", 2e4, 4.0, 256),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            Rope("linear", factor=2.0, original=256),
        ),
    ],
)
def test_rope_keys_as_they_are_met(values, rope):
    """Each is what transformers makes of it too."""
    values = SIZES | {"max_position_embeddings": 256} | values
    assert config_from_hf(values, "config.json").rope == rope
    theirs = transformers.LlamaConfig.from_dict(json.loads(json.dumps(values))).to_dict()
    assert config_from_hf(theirs, "config.json").rope == rope


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "longllama"}, "model_type longllama is not one of those there are .llama, mixtral, splice_moe"),
        ({"model_type": ...}, "model_type None is not one of"),
        ({"hidden_act": "gelu"}, r"hidden_act gelu is not implemented \(only silu is\)"),
        ({"attention_bias": True}, r"attention_bias True is not implemented \(only False is\)"),
        ({"mlp_bias": True}, "mlp_bias True is not implemented"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not implemented"),
        ({"mem_positionals": False}, "mem_positionals False is not implemented"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"weights are quantised \(gptq\)"),
        ({"hidden_size": ...}, "hidden_size is None, not a whole number from 1 on"),
        ({"vocab_size": 97.5}, "vocab_size is 97.5, not a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, not a whole number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"num_attention_heads": 100}, "head_dim 0 is odd or 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is small, not a number above 0"),
        ({"mem_layers": [2]}, r"mem_layers \[2\] is no list of layers, 0 to 1"),
        ({"mem_layers": [0], "last_context_length": 0}, "last_context_length is 0"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0, not a number above 0"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type dynamic is not implemented"),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "rope type longrope is not implemented"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "of each kind of layer"),
        ({"rope_scaling": {"type": "yarn"}}, "rope type yarn has no factor; add it"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope type llama3 has no low_freq_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 0.7}}, "rope type yarn: mscale 0.7 is not"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale_all_dim": 1}}, "mscale_all_dim 1 is not implemented"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}}, r"truncate False .* \(only True is\)"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor 0.25 is not implemented"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "rope type linear: factor is 4, not a number"),
    ],
)
def test_what_is_not_implemented_is_refused(changes, message):
    values = {key: value for key, value in (SIZES | changes).items() if value is not ...}
    with pytest.raises(SpliceError, match=f"^the/config.json: .*{message}"):
        config_from_hf(values, "the/config.json")


# ------------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", SMALL)
def test_an_export_loads_in_transformers_and_here(name, tmp_path, warnings):
    config = SMALL[name]
    model = make(config)
    directory = export(model, tmp_path / "model")
    theirs, report = transformers.LlamaForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report.values())
    assert not warnings.records
    back = load(locate(str(directory)))
    assert back.config == config
    assert torch.equal(logits_of(model, IDS[:, :160]), logits_of(back, IDS[:, :160]))
    if config.fot is None:
        torch.testing.assert_close(logits_of(model), logits_of(theirs), rtol=0, atol=1e-5)
    else:  # a plain Llama is the same model within one local context
        first = IDS[:, : config.fot.local_context]
        torch.testing.assert_close(logits_of(model, first), logits_of(theirs, first), rtol=0, atol=1e-5)


def test_what_an_export_holds(model, tmp_path):
    directory = export(model, tmp_path / "model", torch.bfloat16)
    assert names(directory) == ["config.json", "generation_config.json", "model.safetensors"]
    with safetensors.safe_open(directory / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118
    generation = transformers.GenerationConfig.from_pretrained(directory)
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (0, 1, 2)
    assert transformers.AutoConfig.from_pretrained(directory).dtype == torch.bfloat16
    assert json.loads((directory / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_tied_head_is_not_written(tmp_path):
    model = make(TIED)
    directory = tmp_path / "model"
    write_model(directory, TIED, model.state_dict().items(), None, None, torch.float32)
    assert "lm_head.weight" in model.state_dict()
    assert "lm_head.weight" not in safetensors.torch.load_file(directory / "model.safetensors")
    assert torch.equal(logits_of(model), logits_of(load(directory)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_weights_come_in_the_dtype_they_are_stored_in(model, tmp_path, dtype):
    directory = export(model, tmp_path / "model", dtype)
    for name, weight in read_weights(directory, BASE):
        assert weight.dtype == dtype
        assert torch.equal(weight, model.get_parameter(name).to(dtype))


@pytest.mark.parametrize("name", ["short rope", "yarn", "tied"])
@pytest.mark.parametrize("shard", ["10GB", "40KB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_transformers_saves_loads_here(name, shard, dtype, tmp_path):
    model = make(SMALL[name])
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(config_to_hf(model.config)))
    theirs.load_state_dict(model.state_dict())
    theirs.to(dtype).save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "40KB")
    ours = load(tmp_path)
    assert ours.config == model.config
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(logits_of(ours), logits_of(theirs), rtol=0, atol=1e-5)


def test_shards_are_bounded_and_held_one_at_a_time(model, tmp_path):
    limit = 60_000
    written = []

    def weights():
        for name, weight in model.named_parameters():
            written.append(len(list(tmp_path.glob(".tmp-*/*.safetensors"))))
            yield name, weight

    directory = tmp_path / "model"
    write_model(directory, BASE, weights(), None, None, torch.float32, shard_bytes=limit)
    shards = sorted(directory.glob("*.safetensors"))
    count = len(shards)
    assert count > 3
    assert [shard.name for shard in shards] == [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    assert all(shard.stat().st_size < limit + 4096 for shard in shards)
    assert written[-1] >= count - 2  # on disk before the last tensor was asked for
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_parameters": BASE.parameters, "total_size": 4 * BASE.parameters}
    for name, file in index["weight_map"].items():
        assert torch.equal(safetensors.torch.load_file(directory / file)[name], model.get_parameter(name))
    assert sorted(index["weight_map"]) == sorted(parameter_shapes(BASE))
    assert torch.equal(logits_of(load(directory)), logits_of(model))
    theirs = transformers.LlamaForCausalLM.from_pretrained(directory)
    torch.testing.assert_close(logits_of(model), logits_of(theirs), rtol=0, atol=1e-5)
    (directory / "model.safetensors.index.json").unlink()
    assert torch.equal(logits_of(load(directory)), logits_of(model))  # any *.safetensors


def test_a_tensor_that_its_owner_overwrites_is_written_as_it_was(model, tmp_path):
    def weights():
        for name, weight in model.named_parameters():
            buffer = weight.detach().clone()
            yield name, buffer
            buffer.zero_()

    write_model(tmp_path / "model", BASE, weights(), None, None, torch.float32)
    assert torch.equal(logits_of(load(tmp_path / "model")), logits_of(model))


# ------------------------------------------------------------------------------------------------------- tokenizers


def test_the_tokenizer_of_an_export_is_the_datasets(model, tmp_path, tokenizer_file):
    tokenizer = load_tokenizer(str(tokenizer_file), fast=False)
    tokenizer.save(tmp_path / "tokenizer")
    ids = {role: getattr(tokenizer, role) for role in ("bos_id", "eos_id", "pad_id")}
    directory = export(model, tmp_path / "model", tokenizer=tmp_path / "tokenizer", tokenizer_ids=ids)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    text = "def f(x):\n    return x + 1  # naïve"
    expected = tokenizer.encode([text.encode()])[0].tolist()
    assert theirs(text, add_special_tokens=False)["input_ids"] == expected
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    config = transformers.AutoConfig.from_pretrained(directory)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 1, 2)
    modes = {path.stat().st_mode for path in directory.iterdir()}
    assert len(modes) == 1  # who may read the tokenizer may read the weights


@pytest.fixture(scope="module")
def sentencepiece_directory(tmp_path_factory) -> Path:
    import sentencepiece

    directory = tmp_path_factory.mktemp("sentencepiece")
    text = [f"the {a} of {b} and a number {i}" for i in range(50) for a in ("tale", "sea") for b in ("whales", "ships")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(directory / "tokenizer"), model_type="bpe", vocab_size=97,
        byte_fallback=False, minloglevel=2,
    )  # fmt: skip
    (directory / "tokenizer.vocab").unlink()
    return directory


def test_a_sentencepiece_tokenizer_is_exported_too(model, tmp_path, sentencepiece_directory, monkeypatch):
    monkeypatch.setenv("TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK", "true")  # sentencepiece's is newer than Beam's
    directory = export(model, tmp_path / "model", tokenizer=sentencepiece_directory)
    tokenizer = load_tokenizer(str(sentencepiece_directory), fast=False)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    text = "the tale of ships and a number 7"
    expected = tokenizer.encode([text.encode()])[0].tolist()
    assert theirs(text, add_special_tokens=False)["input_ids"] == expected
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


# ------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("kind", ["file", "directory with something", "link to one"])
def test_an_output_that_is_taken_is_refused_and_left_alone(model, tmp_path, kind):
    output = tmp_path / "model"
    if kind == "file":
        output.write_text("mine")
    else:
        full = tmp_path / ("other" if kind == "link to one" else "model")
        full.mkdir()
        (full / "notes.txt").write_text("mine")
        if kind == "link to one":
            output.symlink_to(full)
    with pytest.raises(SpliceError, match=r"is there already; name another directory, or remove it"):
        export(model, output)
    assert (output if kind == "file" else output / "notes.txt").read_text() == "mine"
    assert not list(tmp_path.glob(".tmp-*"))


def test_an_empty_directory_is_filled(model, tmp_path):
    output = tmp_path / "deep" / "model"
    output.mkdir(parents=True)
    assert torch.equal(logits_of(load(export(model, output))), logits_of(model))


@pytest.mark.parametrize(
    "spoil", ["missing", "unexpected", "misshapen", "head of a tied model", "failing", "full disk"]
)
def test_a_write_that_fails_leaves_nothing(model, tmp_path, spoil, monkeypatch):
    weights = tensors_of(model)
    config, error, message = BASE, SpliceError, None
    if spoil == "missing":
        del weights["model.norm.weight"], weights["lm_head.weight"]
        message = "model.norm.weight and 1 more: not among the weights"
    elif spoil == "unexpected":
        weights["model.layers.2.mlp.up_proj.weight"] = torch.zeros(96, 64)
        message = r"model.layers.2.mlp.up_proj.weight \[96, 64\]: the model has none"
    elif spoil == "misshapen":
        weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(64, 96)
        message = r"up_proj.weight \[64, 96\]: the model has one of \[96, 64\]"
    elif spoil == "head of a tied model":
        config = TIED
        del weights["model.embed_tokens.weight"]
        message = "model.embed_tokens.weight: not among"
    elif spoil == "full disk":

        def fail(*_, **__):
            raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(hf_write, "save_file", fail)
        error, message = BuildFailed, "cannot be written .*No space left"

    def given():
        yield from weights.items()
        if spoil == "failing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt if spoil == "failing" else error, match=message):
        write_model(tmp_path / "model", config, given(), None, None, torch.float32, shard_bytes=50_000)
    assert names(tmp_path) == []


def test_a_tokenizer_that_is_not_there_is_refused_before_anything_is_written(model, tmp_path):
    with pytest.raises(SpliceError, match=r"nowhere: neither a tokenizer.json nor a tokenizer.model there"):
        export(model, tmp_path / "model", tokenizer=tmp_path / "nowhere")
    assert names(tmp_path) == []


# ------------------------------------------------------------------------------------------------------- reading


def rewrite(directory: Path, change) -> None:
    """The export's weights as `change` leaves them, in the same file."""
    path = directory / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    change(weights)
    path.unlink()
    safetensors.torch.save_file(weights, path)


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(NORM), f"its weights lack {NORM}; they are not those of its config.json"),
        (
            lambda w: [w.pop(name) for name in list(w) if "layers.1" in name],
            f"lack {NORM} and 8 more",
        ),
        (lambda w: w.pop("lm_head.weight"), r"lack lm_head.weight \(tie_word_embeddings is false in config.json\)"),
        (lambda w: w.update(extra=torch.zeros(3)), r"model.safetensors: extra is no part of the model of its config"),
        (
            lambda w: w.update({f"model.layers.{i}.self_attn.q_proj.bias": torch.zeros(64) for i in range(2)}),
            "q_proj.bias and 1 more is no part of",
        ),
        (
            lambda w: w.update({NORM: torch.zeros(65)}),
            rf"model.safetensors: {NORM} is \[65\], but \[64\] by config.json; the two are not of one model",
        ),
        (lambda w: w.update({NORM: torch.zeros(64, dtype=torch.int8)}), f"{NORM} is I8: quantised"),
        (lambda w: w.update({NORM: torch.zeros(64).to(torch.float8_e4m3fn)}), f"{NORM} is F8_E4M3: quantised"),
    ],
)
def test_weights_that_are_not_the_models_are_refused_before_the_first_is_given(directory, change, message):
    rewrite(directory, change)
    with pytest.raises(SpliceError, match=message):
        read_weights(directory, BASE)  # no tensor is asked for


def test_tables_that_older_transformers_saved_are_passed_over(directory, model):
    rewrite(directory, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    assert torch.equal(logits_of(load(directory)), logits_of(model))


def test_the_head_of_a_tied_model_may_be_there_if_it_is_the_embedding(tmp_path):
    model = make(TIED)
    directory = export(model, tmp_path / "model")
    rewrite(directory, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    assert torch.equal(logits_of(load(directory)), logits_of(model))
    rewrite(directory, lambda w: w["lm_head.weight"].add_(1))
    with pytest.raises(SpliceError, match=r"lm_head.weight is not model.embed_tokens.weight, but tie_word_embeddings"):
        read_weights(directory, TIED)


def test_a_torn_file_is_named(directory):
    path = directory / "model.safetensors"
    data = path.read_bytes()
    for size in (0, 5, 500, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(SpliceError, match=r"model.safetensors: torn, or no safetensors \(.+\); copy or download"):
            read_weights(directory, BASE)


def test_a_pointer_of_git_lfs_is_told_from_weights(directory):
    (directory / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    for call in (lambda: locate(str(directory)), lambda: read_weights(directory, BASE)):
        with pytest.raises(SpliceError, match=r"model.safetensors: a Git LFS pointer"):
            call()


def test_an_index_must_be_whole_and_its_files_there(model, tmp_path):
    directory = export(model, tmp_path / "model", shard_bytes=60_000)
    index = directory / "model.safetensors.index.json"
    content, first = index.read_text(), sorted(directory.glob("model-*"))[0]
    first.rename(tmp_path / "elsewhere")
    with pytest.raises(SpliceError, match=rf"index.json: names {first.name}, which is not beside it"):
        read_weights(directory, BASE)
    (tmp_path / "elsewhere").rename(first)
    for spoilt in (content[:50], "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 3}}'):
        index.write_text(spoilt)
        with pytest.raises(SpliceError, match=r"index.json: no weight_map in it, or torn"):
            read_weights(directory, BASE)
    index.write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    shutil.copy(first, tmp_path / "elsewhere.safetensors")
    with pytest.raises(SpliceError, match=r"names \.\./elsewhere.safetensors, which is not beside it"):
        read_weights(directory, BASE)


def test_a_tensor_in_two_files_is_refused(model, tmp_path):
    directory = export(model, tmp_path / "model", shard_bytes=60_000)
    (directory / "model.safetensors.index.json").unlink()
    shutil.copy(sorted(directory.glob("*.safetensors"))[0], directory / "z.safetensors")
    with pytest.raises(
        SpliceError, match=r"z.safetensors: model.embed_tokens.weight is in model-00001-of-\d+.safetensors"
    ):
        read_weights(directory, BASE)


# ------------------------------------------------------------------------------------------------------- pytorch_model.bin


def pickled(directory: Path, *parts: dict, suffix: str = "") -> None:
    """The weights as torch.save writes them instead of safetensors: one file, or several with an index."""
    (directory / "model.safetensors").unlink()
    if len(parts) == 1:
        torch.save(parts[0], directory / "pytorch_model.bin")
        return
    files = [f"pytorch_model-{i + 1:05d}-of-{len(parts):05d}.bin" for i in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        torch.save(part, directory / file)
    weight_map = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_pickled_checkpoint_loads(directory, model, shards, dtype):
    weights = [(name, weight.to(dtype)) for name, weight in tensors_of(model).items()]
    pickled(directory, *(dict(weights[i::shards]) for i in range(shards)))
    assert locate(str(directory)) == directory
    for name, weight in read_weights(directory, BASE):
        assert weight.dtype == dtype
        assert torch.equal(weight, model.get_parameter(name).to(dtype))
    assert sum(1 for _ in read_weights(directory, BASE)) == len(weights)


def test_safetensors_are_taken_where_both_are(directory, model):
    torch.save({"x": torch.zeros(1)}, directory / "pytorch_model.bin")
    assert torch.equal(logits_of(load(directory)), logits_of(model))


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["beside the weights", "alone"])
def test_an_object_in_a_pickle_is_refused_and_not_run(directory, model, tmp_path, where):
    payload = Payload(tmp_path / "ran")
    pickled(directory, tensors_of(model) | {"payload": payload} if where == "beside the weights" else payload)
    with pytest.raises(
        SpliceError, match=r"pytorch_model.bin: holds more than tensors, .* get the model as safetensors"
    ):
        read_weights(directory, BASE)
    assert not (tmp_path / "ran").exists()
    torch.load(directory / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "ran").exists()  # it would have run


@pytest.mark.parametrize("content", [[1, 2], {"step": 3}, {"model": {"a": torch.zeros(1)}}])
def test_a_pickle_of_something_else_is_refused(directory, content):
    pickled(directory, content)
    with pytest.raises(SpliceError, match=r"pytorch_model.bin: not a dictionary of tensors"):
        read_weights(directory, BASE)


def test_a_torn_pickle_is_named(directory, model):
    pickled(directory, tensors_of(model))
    path = directory / "pytorch_model.bin"
    data = path.read_bytes()
    for size in (0, 100, len(data) // 2, len(data) - 30):
        path.write_bytes(data[:size])
        with pytest.raises(SpliceError, match=r"pytorch_model.bin: (torn|holds more)"):
            read_weights(directory, BASE)


# ------------------------------------------------------------------------------------------------------- finding


def test_a_directory_without_a_model_says_what_is_there(directory, tmp_path):
    assert locate(str(directory)) == directory
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path / "empty"): "no config.json there \\(found: nothing\\)",
        str(tmp_path / "none"): "no such directory; name a directory with a Llama",
        str(directory / "config.json"): "no such directory",
        "a//b": "no such directory",
    }
    for init, message in cases.items():
        with pytest.raises(SpliceError, match=f"^{init}: {message}"):
            locate(init)
    (directory / "model.safetensors").unlink()
    with pytest.raises(SpliceError, match=r"no weights there, .* \(found: config.json, generation_config.json\)"):
        locate(str(directory))


def test_a_home_directory_is_understood(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory.parent))
    assert locate("~/model") == directory


def test_a_torn_config_is_named(directory):
    for content in ('{"model_type": "lla', "[]", ""):
        (directory / "config.json").write_text(content)
        with pytest.raises(SpliceError, match=r"config.json: absent or torn; copy it there again"):
            read_config(directory)
    edit_target = directory / "config.json"
    edit_target.write_text(json.dumps(SIZES | {"hidden_act": "relu"}))
    with pytest.raises(SpliceError, match=rf"^{edit_target}: hidden_act relu"):
        read_config(directory)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that gives what is in a directory; the files that it was asked for."""
    import huggingface_hub

    asked = []

    def snapshot_download(name, allow_patterns, ignore_patterns):
        target = tmp_path / "cache" / name
        target.mkdir(parents=True, exist_ok=True)
        source = tmp_path / "hub"
        for path in (p for p in source.rglob("*") if p.is_file()):
            file = str(path.relative_to(source))
            wanted = any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch.fnmatch(file, pattern) for pattern in ignore_patterns):
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / file)
                asked.append(file)
        return str(target)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_model_of_the_hub_is_downloaded_without_what_is_not_needed(model, tmp_path, hub):
    source = export(model, tmp_path / "hub")
    for file in (
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/a.safetensors",
        "README.md",
        "flax.msgpack",
    ):
        (source / file).parent.mkdir(exist_ok=True)
        (source / file).write_text("not needed")
    for file in ("tokenizer.model", "tokenizer.json", "merges.txt"):
        (source / file).write_text("{}")
    directory = locate("org/name-1.5")
    assert torch.equal(logits_of(load(directory)), logits_of(model))
    assert sorted(hub) == sorted(
        [
            "config.json",
            "generation_config.json",
            "merges.txt",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer.model",
        ]
    )


def test_pickled_weights_are_downloaded_where_there_are_no_others(model, tmp_path, hub):
    source = export(model, tmp_path / "hub")
    pickled(source, tensors_of(model))
    assert torch.equal(logits_of(load(locate("org/name"))), logits_of(model))
    assert "pytorch_model.bin" in hub


def test_a_hub_that_does_not_answer_is_an_error_with_a_remedy(monkeypatch):
    import huggingface_hub

    def snapshot_download(*_, **__):
        raise OSError("offline mode is enabled\nmany more lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(
        SpliceError,
        match=r"^org/name: no such directory here, and the hub does not give it \(offline mode is enabled\); without a "
        r"network, name the directory of a model that was downloaded before$",
    ):
        locate("org/name")
