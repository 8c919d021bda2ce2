"""The encoder with a real model from PyPI: its embeddings are sentence-transformers' own, and what is wrong is said."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from splice.encoder import Encoder, Located, locate
from splice.errors import SpliceError

TEXTS = [
    "",
    " \n \t ",
    "def add(a, b):\n    return a + b\n",
    "A whale is a mammal that lives in the sea. " * 40,
    "word " * 9000,
    " " * 5000 + "late words after much white space",
    "x" * 20000,
    "日本語の文章です。" * 900,
    "é" * 3 + " \x00 naïve ~~~~",
    *(f"document {i} of many, about {'ships' if i % 2 else 'law'} " * (i % 23 + 1) for i in range(70)),
]


@pytest.fixture(scope="module")
def encoder(encoder_directory: Path) -> Encoder:
    return Encoder(locate(str(encoder_directory)), 512)


@pytest.fixture(scope="module")
def reference(encoder_directory: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder_directory), device="cpu", local_files_only=True)
    return model.encode(TEXTS)


@pytest.fixture
def copy(encoder_directory: Path, tmp_path: Path) -> Path:
    """A copy of the model's directory, to be spoilt."""
    return shutil.copytree(encoder_directory, tmp_path / "model", ignore=shutil.ignore_patterns(".*"))


def test_embeddings_are_those_of_sentence_transformers(encoder, reference):
    embeddings = encoder.embed(TEXTS)
    assert embeddings.dtype == np.float16
    assert embeddings.shape == (len(TEXTS), encoder.dimension) == (len(TEXTS), 384)
    np.testing.assert_allclose(embeddings, reference, atol=1e-3)
    assert np.ptp(reference, axis=0).max() > 0.1  # so that 1e-3 tells one text from another


def test_neither_threads_nor_company_change_an_embedding(encoder):
    together = encoder.embed(TEXTS)
    assert (encoder.embed(TEXTS, threads=3) == together).all()
    reordered = encoder.embed(TEXTS[::-1])[::-1]
    np.testing.assert_allclose(reordered, together, atol=1e-3)


def test_several_threads_may_share_it(encoder):
    expected, found = encoder.embed(TEXTS[:20]), [None] * 4

    def work(i: int) -> None:
        found[i] = encoder.embed(TEXTS[:20])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((f == expected).all() for f in found)


@pytest.mark.parametrize("tokens", [8, 16, 64])
def test_only_the_first_tokens_count(encoder_directory, encoder, tokens):
    short = Encoder(locate(str(encoder_directory)), tokens)
    assert short.max_tokens == tokens
    text = "one two three four five six seven eight nine ten " * 30
    head = " ".join(text.split()[: tokens - 2])  # without the two special tokens
    changed = head + " entirely different words come after the end"
    a, b, c = short.embed([text, head, changed])
    np.testing.assert_allclose(a, b, atol=1e-3)
    np.testing.assert_allclose(a, c, atol=1e-3)
    assert np.abs(encoder.embed([text]) - a).max() > 0.01


def test_a_model_says_how_many_tokens_it_takes(encoder):
    assert encoder.max_tokens == 256  # sentence_bert_config.json, though 512 were asked


def test_a_plain_model_gives_the_mean_not_normalised(copy):
    import torch
    from transformers import AutoModel, AutoTokenizer

    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (copy / name).unlink()
    shutil.rmtree(copy / "1_Pooling")
    encoder = Encoder(locate(str(copy)), 512)
    assert encoder.max_tokens == 512
    model, tokenizer = AutoModel.from_pretrained(copy).eval(), AutoTokenizer.from_pretrained(copy)
    for text in TEXTS[2:5]:
        inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
        with torch.inference_mode():
            mean = model(**inputs).last_hidden_state[0].mean(dim=0).numpy()
        assert np.linalg.norm(mean) > 1.2
        np.testing.assert_allclose(encoder.embed([text])[0], mean, atol=3e-3)


def test_a_checkpoint_of_torch_is_read_without_running_what_is_in_it(copy, encoder, tmp_path):
    import torch
    from safetensors.torch import load_file

    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    np.testing.assert_allclose(Encoder(locate(str(copy)), 512).embed(TEXTS[:4]), encoder.embed(TEXTS[:4]), atol=1e-3)

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({**weights, "bomb": Bomb()}, copy / "pytorch_model.bin")
    with pytest.raises(SpliceError, match="cannot be loaded"):
        Encoder(locate(str(copy)), 512)
    assert not (tmp_path / "ran").exists()


def test_code_in_a_models_directory_is_not_run(copy, tmp_path):
    (copy / "own.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nclass Mine: pass\n")
    modules = json.loads((copy / "modules.json").read_text())
    modules[1]["type"] = "own.Mine"
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SpliceError, match="cannot be loaded"):
        Encoder(locate(str(copy)), 512)
    assert not (tmp_path / "ran").exists()


def test_weights_of_another_model_are_refused_rather_than_made_up(copy):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    save_file(
        {name: w for name, w in weights.items() if "layer.3." not in name},
        copy / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(SpliceError, match=r"weights lack encoder.layer.3.* and 15 more, which would be random"):
        Encoder(locate(str(copy)), 512)


def test_values_beyond_float16_are_refused(copy):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    weights["encoder.layer.5.output.LayerNorm.weight"] *= 1e6
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    modules = json.loads((copy / "modules.json").read_text())[:2]  # normalising would hide it
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(SpliceError, match="not finite in float16; give another --encoder"):
        Encoder(locate(str(copy)), 512)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: (d / "model.safetensors").unlink(), r"no weights there \(model.safetensors or .*; found: 1_Pooling"),
        (lambda d: (d / "config.json").unlink(), "no config.json there"),
        (
            lambda d: (d / "model.safetensors").write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
            ),
            "a Git LFS pointer, not the weights; run `git lfs pull` there",
        ),
    ],
)
def test_a_directory_that_lacks_something_says_what(copy, spoil, said):
    spoil(copy)
    with pytest.raises(SpliceError, match=said):
        locate(str(copy))


@pytest.mark.parametrize("name", ["/no/such/place", "a/b/c", "two words"])
def test_a_name_that_is_neither_a_directory_nor_of_the_hub(name):
    with pytest.raises(SpliceError, match="not a directory; give --encoder a directory"):
        locate(name)


def cached(cache: Path, model: Path) -> str:
    """Put a model into a cache of the hub, as a download leaves it; gives its commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    place = cache / "models--some--encoder"
    shutil.copytree(model, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    return commit


def test_a_name_of_the_hub_is_found_where_it_is_cached(encoder_directory, tmp_path, monkeypatch):
    import huggingface_hub.constants as hub

    commit = cached(tmp_path, encoder_directory)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    located = locate("some/encoder")
    assert (located.revision, located.identity) == (commit, f"some/encoder@{commit}")
    assert located.dimension == 384
    with pytest.raises(SpliceError, match=r"encoder some/other: not a directory, and it cannot be had from the hub"):
        locate("some/other")


def test_the_identity_is_that_of_the_files(copy, encoder_directory):
    def of(directory: Path) -> str:
        return Located("x", directory, None).identity

    before = of(copy)
    assert before == of(copy)
    (copy / ".cache").write_text("not of the model")
    assert before == of(copy)
    with open(copy / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert before != of(copy)


def test_what_is_not_installed_is_named_with_the_extra(monkeypatch):
    import importlib.util

    import splice.encoder

    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faiss" else there(name))
    with pytest.raises(SpliceError, match=r"needs faiss, which is not installed; pip install 'splice-data\[dense\]'"):
        splice.encoder.require()
