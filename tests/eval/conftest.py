"""Small models to evaluate, made on the spot: by transformers, of many kinds, and by our trainer, with FoT."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

try:
    import torch
except ModuleNotFoundError:  # the core install: what needs torch skips, the rest runs
    torch = None


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Sizes are too small to share out, and other tests run beside."""
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LLAMA = {
    "vocab_size": 640,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
}


def lively(model, seed: int = 0):
    """Weights under which logits differ by much from token to token, so that a wrong one shows."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.copy_(
                    torch.randn(weight.shape, generator=draw)
                    * (1.0 if "emb" in name else 1.3)
                    / weight.shape[-1] ** 0.5
                )
    return model


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path):
    """make_model(config) -> the directory of a transformers model of that config, with weights that matter and a tokenizer."""

    def make(config, tokenizer: bool = True) -> Path:
        import transformers

        directory = tmp_path_factory.mktemp(config.model_type)
        lively(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(directory)
        if tokenizer:
            for path in tokenizer_file.parent.iterdir():
                shutil.copy(path, directory)
        return directory

    return make


@pytest.fixture(scope="session")
def llama(make_model) -> Path:
    """A Llama with grouped heads and 4,096 positions."""
    import transformers

    return make_model(transformers.LlamaConfig(**LLAMA))


@pytest.fixture(scope="session")
def fot(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A FoT Llama of 2,048 tokens: layer 1 remembers, local contexts of 64, the last 24 tokens of a prompt at most stay local."""
    from splice.train.fot import FoT
    from splice.train.hf_write import write_model
    from splice.train.model import Llama, ModelConfig

    config = ModelConfig(640, 64, 3, 4, 2, 16, 96, 2048, fot=FoT((1,), 64, 15, 24))
    directory = tmp_path_factory.mktemp("fot") / "hf"
    write_model(directory, config, lively(Llama(config)).named_parameters(), tokenizer_file.parent, None, torch.float32)
    return directory
