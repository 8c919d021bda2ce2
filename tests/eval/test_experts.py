"""Models with experts: a Mixtral is read by our own model and answers as transformers' does; a choice among texts is refused."""

import json
import shutil
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import safetensors.torch

from splice.errors import SpliceError
from splice.eval.models import open_model
from splice.eval.settings import EngineSettings
from splice.train.cache import Cache
from splice.train.experts.config import Experts
from splice.train.hf_config import config_to_hf
from splice.train.model import Llama, ModelConfig
from splice.train.restore import load_model

SIZES = {
    "vocab_size": 640,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
}


def settings():
    return EngineSettings(device="cpu", dtype="float32")


def test_a_mixtral_is_read_by_our_model_with_the_logits_of_transformers(make_model):
    directory = make_model(transformers.MixtralConfig(**SIZES))
    opened = open_model(str(directory), settings())
    assert opened.facts["backend"] == "splice"
    assert opened.facts["prefix"] == "read once"
    ids = torch.randint(0, 640, (90,), generator=torch.Generator().manual_seed(0))
    model = load_model(directory, torch.float32, torch.device("cpu"))
    cache = Cache()
    with torch.no_grad():
        wanted = transformers.AutoModelForCausalLM.from_pretrained(directory)(ids[None]).logits[0]
        parts = [model(ids[None, a:b], cache=cache)[0] for a, b in ((0, 50), (50, 51), (51, 90))]
    torch.testing.assert_close(torch.cat(parts), wanted, rtol=0, atol=1e-4)


def test_routers_stay_in_float32_whatever_the_rest_is_read_as(make_model):
    model = load_model(make_model(transformers.MixtralConfig(**SIZES)), torch.bfloat16, torch.device("cpu"))
    kinds = {name.split(".mlp.")[1]: p.dtype for name, p in model.named_parameters() if ".mlp." in name}
    assert kinds["gate.weight"] == torch.float32
    assert kinds["experts.gate_up_proj"] == kinds["experts.down_proj"] == torch.bfloat16


@pytest.mark.parametrize("routing", ["expert_choice", "mixture_of_tokens"])
def test_experts_that_choose_among_texts_are_refused_unless_a_text_is_alone(routing, tmp_path, tokenizer_file):
    experts = Experts(routing, 2, 2, (0, 1), 4 if routing == "expert_choice" else 2, group=4, balance=0.0)
    for group in (4, 1):
        config = ModelConfig(640, 64, 2, 4, 2, 16, 64, 512, experts=replace(experts, group=group))
        directory = tmp_path / str(group)
        shutil.copytree(tokenizer_file.parent, directory)
        (directory / "config.json").write_text(json.dumps(config_to_hf(config)))
        weights = {name: torch.randn(p.shape) / p.shape[-1] ** 0.5 for name, p in Llama(config).named_parameters()}
        safetensors.torch.save_file(weights, directory / "model.safetensors")
        if group == 1:
            assert open_model(str(directory), settings()).facts["backend"] == "splice"
            continue
        with pytest.raises(SpliceError, match=rf"its experts \({routing}, groups of 4\) choose among several texts"):
            open_model(str(directory), settings())
