"""Mixtures of experts as Hugging Face directories: Mixtral's where Mixtral can express them, refused where not."""

from __future__ import annotations

import json
import weakref
from dataclasses import asdict, replace
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import safetensors.torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from splice.errors import SpliceError
from splice.train.checkpoint import save
from splice.train.experts.config import Experts
from splice.train.export import export as export_checkpoint
from splice.train.fot import FoT
from splice.train.hf_config import beyond_mixtral, config_from_hf, config_to_hf
from splice.train.hf_experts import parts, split
from splice.train.hf_read import parameter_shapes, read_config, read_weights
from splice.train.hf_write import write_model
from splice.train.model import Llama, ModelConfig, initial
from splice.train.parallel import World
from splice.train.restore import load_model, weights_of
from splice.train.rope import Rope, extend

CPU = torch.device("cpu")
FINE = Experts("token_choice", 4, 2, (0, 1), 4)
BASE = ModelConfig(97, 32, 2, 4, 2, 8, 64, 256, Rope(original=64), experts=FINE)
WHOLE = replace(BASE, experts=Experts("token_choice", 1, 4, (0, 1), 2))
EXPRESSED = {
    "fine": BASE,
    "whole": WHOLE,
    "tied": replace(WHOLE, tied=True),
    "one expert": replace(BASE, experts=Experts("token_choice", 1, 1, (0, 1), 1)),
    "one key-value head": replace(BASE, kv_heads=1, norm_eps=1e-5),
    "yarn": replace(BASE, rope=extend(BASE.rope, "yarn", 256)),
    "linear": replace(WHOLE, rope=extend(BASE.rope, "linear", 256)),
    "capacity": replace(BASE, experts=replace(FINE, capacity=1.0, balance=0.02, z=0.001, jitter=0.1)),
    "fot": replace(BASE, fot=FoT((1,), 32, 7, 16)),
}
OTHERS = {
    "expert choice": (replace(FINE, routing="expert_choice", group=8, balance=0.0), "routing expert_choice"),
    "mixture of tokens": (replace(FINE, routing="mixture_of_tokens", group=2), "routing mixture_of_tokens"),
    "threshold": (Experts("threshold", 4, 1, (0, 1), 4, tau=0.4, sparsity=0.1), "routing threshold"),
    "gelu": (replace(FINE, activation="gelu"), "gelu experts"),
    "relu": (replace(FINE, activation="relu"), "relu experts"),
    "not renormalised": (replace(FINE, active=1, renormalise=False), "weights not renormalised"),
    "a dense layer": (replace(FINE, layers=(1,)), "layer 0 is dense"),
    "all of it": (
        Experts("expert_choice", 2, 2, (), 2, "gelu"),
        "routing expert_choice, gelu experts, layers 0, 1 are dense",
    ),
}
IDS = torch.arange(192).view(2, 96) * 31 % 97
Theirs = transformers.MixtralForCausalLM


def logits_of(model, ids=IDS):
    with torch.no_grad():
        out = model(ids)
    return out if isinstance(out, torch.Tensor) else out.logits


@pytest.fixture
def make(randomised):
    def made(config: ModelConfig, seed: int = 0) -> Llama:
        return randomised(Llama(config).eval(), seed)

    return made


def export(model: Llama, output: Path, dtype=torch.float32, **more) -> Path:
    write_model(output, model.config, model.named_parameters(), None, None, dtype, **more)
    return output


def same(a: Llama, b: Llama) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def load(directory: Path) -> Llama:
    return load_model(directory, torch.float32, CPU)


def stored_shapes(directory: Path) -> dict[str, list[int]]:
    found = {}
    for path in directory.glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            found |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return found


def rewrite(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    change(weights)
    path.unlink()
    safetensors.torch.save_file(weights, path)


# ------------------------------------------------------------------------------------------------------- config.json


def numbers(least: float, most: float = 1e9, **more):
    return st.floats(least, most, **more)


@st.composite
def configs(draw) -> ModelConfig:
    layers, granularity, expansion = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    chosen = draw(st.just(range(layers)) | st.lists(st.integers(0, layers - 1), unique=True))
    experts = Experts(
        routing=draw(st.sampled_from(["token_choice", "expert_choice", "mixture_of_tokens", "threshold"])),
        granularity=granularity,
        expansion=expansion,
        layers=tuple(chosen),
        active=draw(st.integers(1, granularity * expansion)),
        activation=draw(st.sampled_from(["swiglu", "relu", "gelu"])),
        capacity=draw(st.none() | numbers(0, exclude_min=True)),
        renormalise=draw(st.booleans()),
        balance=draw(numbers(0)),
        z=draw(numbers(0)),
        jitter=draw(numbers(0, 1, exclude_max=True)),
        group=draw(st.integers(1, 512)),
        tau=draw(numbers(0, 1, exclude_min=True, exclude_max=True)),
        sparsity=draw(numbers(0)),
    )
    return replace(
        BASE,
        layers=layers,
        mlp_size=granularity * draw(st.integers(1, 9)),
        experts=draw(st.none() | st.just(experts)),
        kv_heads=draw(st.sampled_from([1, 2, 4])),
        rope=draw(st.sampled_from([config.rope for config in EXPRESSED.values()])),
        fot=draw(st.none() | st.just(FoT((layers - 1,), 32, 7, 16))),
        norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        tied=draw(st.booleans()),
    )


@given(configs())
@settings(max_examples=300, deadline=None)
def test_a_config_comes_back_from_its_json(config):
    values = json.loads(json.dumps(config_to_hf(config), allow_nan=False))
    assert config_from_hf(values, "config.json") == config
    experts = config.experts
    plain = experts and (experts.routing, experts.activation, experts.renormalise) == ("token_choice", "swiglu", True)
    mixtral = plain and set(experts.layers) == set(range(config.layers))
    assert values["model_type"] == ("mixtral" if mixtral else "splice_moe" if experts else "llama")


def test_the_balance_loss_is_as_strong_in_transformers():
    """Of one layer it is the same number."""
    config = replace(BASE, layers=1, experts=replace(FINE, layers=(0,), balance=0.3))
    model = Llama(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(initial(name, weight.shape, config, 0))
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0))
    model(ids)
    theirs = transformers.MixtralForCausalLM(transformers.MixtralConfig(**config_to_hf(config)))
    values = model.state_dict()
    assert not theirs.load_state_dict(values, strict=False).unexpected_keys
    found = theirs(ids, output_router_logits=True)
    coefficient = theirs.config.router_aux_loss_coef
    torch.testing.assert_close(coefficient * found.aux_loss, 0.3 * model.records[0].balance, rtol=1e-5, atol=0)


def test_what_mixtral_expresses_is_said_in_its_own_keys():
    values = config_to_hf(replace(BASE, experts=replace(FINE, balance=0.02, jitter=0.1)))
    wanted = {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 4,
        "intermediate_size": 16,
        "router_aux_loss_coef": 0.01,  # 2 layers, 4 active
        "router_jitter_noise": 0.1,
        "output_router_logits": False,
        "sliding_window": None,
        "hidden_act": "silu",
        "head_dim": 8,
        "rope_theta": 1e4,
    }
    assert values.items() >= wanted.items()
    assert "mlp_bias" not in values
    assert "attention_bias" not in values
    assert values["splice_experts"]["mlp_size"] == 64
    assert values["splice_experts"]["layers"] == [0, 1]


@pytest.mark.parametrize("name", EXPRESSED)
def test_transformers_reads_the_config_and_writes_it_back(name, tmp_path):
    config = EXPRESSED[name]
    theirs = transformers.MixtralConfig.from_dict(json.loads(json.dumps(config_to_hf(config))))
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (None, None, None)
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path) == config


def test_what_mixtral_does_not_express_transformers_refuses(tmp_path):
    values = config_to_hf(replace(BASE, experts=OTHERS["gelu"][0]))
    assert (values["architectures"], values["intermediate_size"]) == (["SpliceMoeForCausalLM"], 64)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="splice_moe"):
        transformers.AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", OTHERS)
def test_what_mixtral_does_not_have_is_listed(name):
    experts, why = OTHERS[name]
    assert ", ".join(beyond_mixtral(replace(BASE, experts=experts))) == why
    assert beyond_mixtral(BASE) == beyond_mixtral(replace(BASE, experts=None)) == []


SIZES = {
    "model_type": "mixtral",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
}


def test_what_a_foreign_mixtral_does_not_say_is_transformers_default():
    config = config_from_hf(SIZES, "config.json")
    theirs = transformers.MixtralConfig(**{key: value for key, value in SIZES.items() if key != "model_type"})
    assert config == config_from_hf(theirs.to_dict(), "config.json")
    experts = Experts("token_choice", 2, 4, (0, 1), 2, balance=0.001)
    assert config == ModelConfig(
        97, 32, 2, 16, 8, 2, 32, 131072, Rope(theta=1e6, original=131072), experts=experts, norm_eps=1e-5
    )
    assert config_from_hf(SIZES | {"num_key_value_heads": None}, "config.json").kv_heads == 16


@pytest.mark.parametrize(
    ("count", "active", "granularity", "expansion"), [(8, 2, 2, 4), (8, 3, 1, 8), (4, 4, 4, 1), (6, 1, 1, 6)]
)
def test_a_foreign_mixtral_is_as_fine_as_a_token_has_experts(count, active, granularity, expansion):
    foreign = {"num_local_experts": count, "num_experts_per_tok": active, "router_jitter_noise": 0.2}
    config = config_from_hf(SIZES | foreign | {"router_aux_loss_coef": 0}, "config.json")
    experts = Experts("token_choice", granularity, expansion, (0, 1), active, balance=0.0, jitter=0.2)
    assert (config.experts, config.mlp_size) == (experts, 16 * granularity)
    assert config_to_hf(config).items() >= foreign.items()
    assert config_to_hf(config)["intermediate_size"] == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 4096}, "sliding_window 4096 is not implemented; start from a plain Llama or Mixtral"),
        ({"hidden_act": "gelu"}, r"hidden_act gelu is not implemented \(only silu is\)"),
        ({"quantization_config": {"quant_method": "awq"}}, r"weights are quantised \(awq\)"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than num_local_experts 8; mend it"),
        ({"num_local_experts": 0}, "num_local_experts is 0, not a whole number from 1 on; set it"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok is True, not a whole number"),
        ({"router_aux_loss_coef": -0.1}, "router_aux_loss_coef is -0.1, not a number from 0 on; set it"),
        ({"router_jitter_noise": 1.0}, "router_jitter_noise is 1.0, not a number from 0 on and below 1"),
        ({"num_attention_heads": 12}, "no multiple of num_key_value_heads 8"),
        ({"model_type": "qwen3_moe"}, r"qwen3_moe is not one of those there are \(llama, mixtral, splice_moe\); start"),
        ({"model_type": "splice_moe"}, "splice_experts is None, not the fields of the model's experts; copy"),
    ],
)
def test_what_a_foreign_mixtral_cannot_be_is_refused(changes, message):
    with pytest.raises(SpliceError, match=f"^the/config.json: .*{message}"):
        config_from_hf(SIZES | changes, "the/config.json")


@pytest.mark.parametrize("kind", ["mixtral", "splice_moe"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing": "hash"}, "routing is hash, not one of token_choice, expert_choice, mixture_of_tokens, threshold"),
        ({"routing": ...}, "routing is None, not one of"),
        ({"routing": ["token_choice"]}, "routing is .*, not one of"),
        ({"activation": "silu"}, "activation is silu, not one of swiglu, relu, gelu; set it"),
        ({"renormalise": 1}, "renormalise is 1, not one of True, False; set it"),
        ({"granularity": ...}, "granularity is None, not a whole number from 1 on; set it"),
        ({"granularity": 3}, "granularity 3 does not divide mlp_size 64; mend it"),
        ({"expansion": 2.0}, "expansion is 2.0, not a whole number"),
        ({"active": 0}, "active is 0, not a whole number"),
        ({"active": 9}, r"active 9 is more than the 8 experts \(granularity x expansion\); mend it"),
        ({"mlp_size": ...}, "mlp_size is None, not a whole number"),
        ({"group": 0}, "group is 0, not a whole number from 1 on"),
        ({"layers": ...}, "layers None is no list of different layers, 0 to 1; mend it"),
        ({"layers": [0, 2]}, r"layers \[0, 2\] is no list"),
        ({"layers": [0, 0]}, r"layers \[0, 0\] is no list of different"),
        ({"layers": [True]}, r"layers \[True\] is no list"),
        ({"layers": "01"}, "layers 01 is no list"),
        ({"capacity": 0}, "capacity is 0, not a number above 0; set it"),
        ({"balance": -1e-3}, "balance is -0.001, not a number from 0 on"),
        ({"z": float("nan")}, "z is nan, not a number from 0 on"),
        ({"sparsity": float("inf")}, "sparsity is inf, not a number"),
        ({"jitter": "much"}, "jitter is much, not a number from 0 on and below 1"),
        ({"tau": 0.0}, "tau is 0.0, not a number above 0 and below 1"),
        ({"tau": True}, "tau is True, not a number"),
        ({"dropless": True, "mlp": 3}, r"no field dropless, mlp \(there are routing, granularity, .*mlp_size\); leave"),
    ],
)
def test_a_field_of_the_experts_that_makes_no_sense_is_refused(kind, changes, message):
    values = config_to_hf(BASE if kind == "mixtral" else replace(BASE, experts=replace(FINE, layers=(1,))))
    assert values["model_type"] == kind
    fields = values["splice_experts"] | changes
    values["splice_experts"] = {key: value for key, value in fields.items() if value is not ...}
    with pytest.raises(SpliceError, match=f"^the/config.json: splice_experts: {message}"):
        config_from_hf(values, "the/config.json")


def test_fields_that_are_absent_or_null_have_their_defaults():
    values = config_to_hf(BASE)
    kept = ("routing", "granularity", "expansion", "layers", "active", "mlp_size")
    values["splice_experts"] = {key: values["splice_experts"][key] for key in kept}
    assert config_from_hf(values, "config.json") == BASE
    values["splice_experts"] |= dict.fromkeys(asdict(FINE).keys() - set(kept))
    assert config_from_hf(values, "config.json") == BASE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_local_experts": 16}, "num_local_experts is 16, but 8 by splice_experts; mend one of the two"),
        ({"num_experts_per_tok": ...}, "num_experts_per_tok is 2, but 4 by"),  # Mixtral's default
        ({"intermediate_size": 64}, "intermediate_size is 64, but 16 by"),
        ({"router_aux_loss_coef": 0.5}, "router_aux_loss_coef is 0.5, but 0.005 by"),
        ({"splice_experts": []}, r"splice_experts is \[\], not the fields"),
        ({"model_type": "splice_moe"}, "intermediate_size is 16, but 64 by"),
        (
            {"splice_experts": config_to_hf(replace(BASE, experts=OTHERS["gelu"][0]))["splice_experts"]},
            "model_type mixtral, but gelu experts by splice_experts, which Mixtral has not; mend one of the two",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(changes, message):
    values = {key: value for key, value in (config_to_hf(BASE) | changes).items() if value is not ...}
    with pytest.raises(SpliceError, match=f"^the/config.json: {message}"):
        config_from_hf(values, "the/config.json")


# ------------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
@pytest.mark.parametrize("name", EXPRESSED)
def test_an_export_is_the_same_model_in_transformers(name, implementation, make, agree, tmp_path):
    config = EXPRESSED[name]
    model = make(config)
    directory = export(model, tmp_path / "model")
    theirs, report = Theirs.from_pretrained(directory, experts_implementation=implementation, output_loading_info=True)
    assert not any(report.values())
    assert isinstance(transformers.AutoModelForCausalLM.from_pretrained(directory), Theirs)
    ids = IDS[:1, : config.fot.local_context] if config.fot else IDS  # memory layers also see other rows
    agree(logits_of(model, ids), logits_of(theirs, ids), 1e-5)
    back = load(directory)
    assert back.config == config
    assert same(back, model)


def test_what_an_export_holds_are_the_names_that_vllm_reads(make, tmp_path):
    config = EXPRESSED["tied"]
    found = stored_shapes(export(make(config), tmp_path / "model"))
    of_layer = {
        "block_sparse_moe.gate.weight": [4, 32],
        **{f"block_sparse_moe.experts.{e}.{w}.weight": [64, 32] for e in range(4) for w in ("w1", "w3")},
        **{f"block_sparse_moe.experts.{e}.w2.weight": [32, 64] for e in range(4)},
    }
    experts = {f"model.layers.{n}.{name}": shape for n in (0, 1) for name, shape in of_layer.items()}
    assert {name: found.pop(name) for name in experts} == experts
    dense = {name: list(shape) for name, shape in parameter_shapes(config).items() if ".mlp." not in name}
    assert found == dense


def test_the_gates_rows_are_w1(make, tmp_path):
    model = make(BASE)
    stored = safetensors.torch.load_file(export(model, tmp_path / "model") / "model.safetensors")
    for expert in range(8):
        own = model.get_parameter("model.layers.1.mlp.experts.gate_up_proj")[expert]
        stem = f"model.layers.1.block_sparse_moe.experts.{expert}"
        assert torch.equal(stored[f"{stem}.w1.weight"], own[:16])
        assert torch.equal(stored[f"{stem}.w3.weight"], own[16:])
        assert torch.equal(
            stored[f"{stem}.w2.weight"], model.get_parameter("model.layers.1.mlp.experts.down_proj")[expert]
        )


@pytest.mark.parametrize("original", [True, False], ids=["apart", "in one"])
@pytest.mark.parametrize("shard", ["10GB", "20KB"])
@pytest.mark.parametrize(("active", "tied"), [(2, False), (3, True)])
def test_what_transformers_saves_loads_here(original, shard, active, tied, randomised, agree, tmp_path):
    config = transformers.MixtralConfig(
        vocab_size=97, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=active, tie_word_embeddings=tied,
    )  # fmt: skip
    theirs = randomised(Theirs(config).eval())
    theirs.save_pretrained(tmp_path, max_shard_size=shard, save_original_format=original)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    assert ("model.layers.0.mlp.experts.down_proj" in stored_shapes(tmp_path)) == (not original)
    agree(logits_of(load(tmp_path)), logits_of(theirs), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_come_in_the_dtype_they_are_stored_in(make, dtype, tmp_path):
    model = make(BASE)
    directory = export(model, tmp_path / "model", dtype)
    found = dict(read_weights(directory, BASE))
    for name, weight in model.named_parameters():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], weight.to(dtype))
    theirs = Theirs.from_pretrained(directory, dtype=dtype)
    assert all(torch.equal(weight, found[name]) for name, weight in theirs.named_parameters())


@pytest.mark.parametrize("shard_bytes", [1, 5_000, 60_000])
def test_an_experts_tensor_may_lie_in_several_shards(make, agree, shard_bytes, tmp_path):
    model = make(WHOLE)
    directory = export(model, tmp_path / "model", shard_bytes=shard_bytes)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_parameters": WHOLE.parameters, "total_size": 4 * WHOLE.parameters}
    assert index["weight_map"].keys() == stored_shapes(directory).keys()
    over = {file for name, file in index["weight_map"].items() if "layers.0.block_sparse_moe.experts" in name}
    assert len(over) > 1
    assert same(load(directory), model)
    agree(logits_of(Theirs.from_pretrained(directory)), logits_of(model), 1e-5)


def test_pickled_shards_load_too(make, tmp_path):
    model = make(WHOLE)
    directory = export(model, tmp_path / "model")
    weights = list(safetensors.torch.load_file(directory / "model.safetensors").items())
    (directory / "model.safetensors").unlink()
    for i in range(3):
        torch.save(dict(weights[i::3]), directory / f"pytorch_model-{i}.bin")
    assert same(load(directory), model)


def test_a_tensor_that_is_put_together_is_not_kept(make, tmp_path):
    directory = export(make(BASE), tmp_path / "model", shard_bytes=20_000)
    for _, tensor in read_weights(directory, BASE):
        given_away = weakref.ref(tensor)
        del tensor
        assert given_away() is None  # before the next is made


def test_a_file_is_opened_once_where_its_tensors_are_whole_in_it(make, tmp_path, monkeypatch):
    directory = export(make(WHOLE), tmp_path / "model", shard_bytes=10**6)
    opened = []
    from splice.train import hf_read

    plain = hf_read._reader
    monkeypatch.setattr(hf_read, "_reader", lambda file: opened.append(file) or plain(file))
    assert len(list(read_weights(directory, WHOLE))) == len(parameter_shapes(WHOLE))
    assert opened == [directory / "model.safetensors"]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_the_parts_of_a_tensor_are_all_of_it_once(count, size, hidden):
    shapes = {
        "model.layers.3.mlp.experts.gate_up_proj": (count, 2 * size, hidden),
        "model.layers.3.mlp.experts.down_proj": (count, hidden, size),
        "model.layers.3.mlp.gate.weight": (count, hidden),
        "model.layers.3.mlp.gate_proj.weight": (size, hidden),
    }
    for name, shape in shapes.items():
        seen = torch.zeros(shape)
        for part in parts(name, shape):
            assert seen[part.index].shape == part.shape
            seen[part.index] += 1
        assert (seen == 1).all()
    names = [name for name, _ in split((name, torch.zeros(shape)) for name, shape in shapes.items())]
    assert len(set(names)) == len(names) == 3 * count + 2


# ------------------------------------------------------------------------------------------------------- what is wrong

GATE = "model.layers.1.block_sparse_moe.gate.weight"
W1 = "model.layers.1.block_sparse_moe.experts.5.w1.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(W1), f"its weights lack {W1}; they are not those of its config.json"),
        (lambda w: w.pop(GATE), f"its weights lack {GATE};"),
        (lambda w: [w.pop(name) for name in list(w) if ".1.block_sparse_moe.experts." in name], "lack .* and 23 more"),
        (
            lambda w: w.update({W1.replace("experts.5", "experts.8"): torch.zeros(16, 32)}),
            r"model.safetensors: .*experts.8.w1.weight is no part of the model of its config.json",
        ),
        (
            lambda w: w.update({"model.layers.1.mlp.experts.gate_up_proj": torch.zeros(8, 32, 32)}),  # both forms
            "w1.weight and 15 more is no part of the model",
        ),
        (
            lambda w: w.update({"model.layers.1.mlp.gate_proj.weight": torch.zeros(64, 32)}),
            "mlp.gate_proj.weight is no part of",
        ),
        (lambda w: w.update({W1: torch.zeros(64, 32)}), rf"{W1} is \[64, 32\], but \[16, 32\] by config.json; the two"),
        (lambda w: w.update({GATE: torch.zeros(4, 32)}), rf"{GATE} is \[4, 32\], but \[8, 32\] by config.json"),
        (lambda w: w.update({W1: torch.zeros(16, 32, dtype=torch.int8)}), f"{W1} is I8: quantised"),
        (
            lambda w: w.update({W1: torch.zeros(16, 32).bfloat16()}),
            "the experts of model.layers.1.mlp.experts.gate_up_proj are partly BF16 and F32; convert them to one",
        ),
    ],
)
def test_weights_that_are_not_the_models_are_refused_before_the_first_is_given(change, message, make, tmp_path):
    directory = export(make(BASE), tmp_path / "model")
    rewrite(directory, change)
    with pytest.raises(SpliceError, match=message):
        read_weights(directory, BASE)  # no tensor is asked for


# ------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def checkpoint(make, tmp_path):
    """Of a run that trained a model of `config`: the directory and the model."""

    def made(config: ModelConfig) -> tuple[Path, Llama]:
        model = make(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        state = {"step": 1, "tokens": 0, "identity": {}, "tokenizer": {"bos_id": 0, "eos_id": 1, "pad_id": None}}
        path = save(tmp_path / "run", state, model, optimizer, World(CPU), 0, {"tokenizer.json": b"{}"})
        return path, model

    return made


def exported(path: Path, output: Path, dtype: str = "float32") -> list[str]:
    console = Console(file=StringIO(), width=300)
    export_checkpoint(path, output, dtype, console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("name", [*OTHERS, "fine", "fot"])
def test_a_checkpoint_of_any_routing_reads_as_it_was(name, checkpoint):
    config = replace(BASE, experts=OTHERS[name][0]) if name in OTHERS else EXPRESSED[name]
    path, model = checkpoint(config)
    assert read_config(path) == config
    found = dict(weights_of(path, config))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert same(load(path), model)
    rows = IDS.repeat(4, 1)  # a group's worth
    assert torch.equal(logits_of(load(path), rows), logits_of(model, rows))


@pytest.mark.parametrize("name", OTHERS)
def test_what_mixtral_cannot_express_is_not_exported(name, checkpoint, tmp_path):
    experts, why = OTHERS[name]
    path, _ = checkpoint(replace(BASE, experts=experts))
    with pytest.raises(SpliceError, match=rf"hf: not written, .* experts: {why}; .*--init.* token_choice, swiglu"):
        exported(path, tmp_path / "hf")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_an_export_says_what_it_is(checkpoint, agree, tmp_path):
    path, model = checkpoint(BASE)
    lines = exported(path, tmp_path / "hf")
    total = sum(weight.numel() for weight in model.parameters())
    idle = 2 * 4 * 3 * 32 * 16  # 4 of 8 experts in two layers
    assert lines == [
        f"{tmp_path / 'hf'}: MixtralForCausalLM, {total / 1e6:.1f}M parameters ({(total - idle) / 1e6:.1f}M active) in "
        "float32, 256 tokens of context"
    ]
    agree(logits_of(Theirs.from_pretrained(tmp_path / "hf")), logits_of(model), 1e-5)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "hf").eos_token_id == 1


def test_the_sizes_of_an_export_are_the_models(checkpoint, tmp_path):
    """With sizes that millions show."""
    config = replace(BASE, vocab_size=20_000, mlp_size=4096)
    path, _ = checkpoint(config)
    (line,) = exported(path, tmp_path / "hf", "bfloat16")
    total, active = (x / 1e6 for x in (config.parameters, config.active_parameters))
    assert total - active > 0.5
    assert f", {total:.1f}M parameters ({active:.1f}M active) in bfloat16, " in line


def test_what_a_capacity_dropped_in_training_is_not_dropped_elsewhere(checkpoint, agree, tmp_path):
    path, model = checkpoint(EXPRESSED["capacity"])
    _, said = exported(path, tmp_path / "hf")
    assert said == "It was trained with a capacity of 1; transformers drops no token, as inference here does not"
    plain = logits_of(model)
    agree(logits_of(Theirs.from_pretrained(tmp_path / "hf")), plain, 1e-5)
    model.train()
    assert (logits_of(model) - plain).abs().max() > 1e-3  # there it drops


def test_a_dense_export_is_a_llama_as_before(checkpoint, tmp_path):
    path, _ = checkpoint(replace(BASE, experts=None))
    (line,) = exported(path, tmp_path / "hf")
    assert "LlamaForCausalLM, " in line
    assert "active" not in line
    assert "splice_experts" not in json.loads((tmp_path / "hf" / "config.json").read_text())


def test_shards_are_held_one_at_a_time(make, tmp_path):
    """A tensor larger than a shard is split before it is gathered."""
    model, limit = make(BASE), 20_000
    output = tmp_path / "model"
    export(model, output, shard_bytes=limit)
    sizes = [path.stat().st_size for path in sorted(output.glob("*.safetensors"))]
    assert max(parameter.nbytes for name, parameter in model.named_parameters() if ".experts." in name) > limit
    assert all(size < limit + 4096 for size in sizes)
    assert all(a + b > limit for a, b in pairwise(sizes))
