"""The encoder with a real model from PyPI: its embeddings are sentence-transformers' own, and what is wrong is said."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from splice.encoder import Encoder, Located, _head, locate
from splice.errors import BuildFailed, SpliceError

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


@pytest.mark.parametrize("quiet", [False, True])
def test_weights_of_another_model_are_refused_rather_than_made_up(copy, quiet):
    import transformers
    from safetensors.torch import load_file, save_file

    verbosity = transformers.logging.get_verbosity()
    if quiet:
        transformers.logging.set_verbosity_error()

    weights = load_file(copy / "model.safetensors")
    save_file(
        {name: w for name, w in weights.items() if "layer.3." not in name},
        copy / "model.safetensors",
        metadata={"format": "pt"},
    )
    try:
        with pytest.raises(SpliceError, match=r"weights lack encoder.layer.3.* and 15 more, which would be random"):
            Encoder(locate(str(copy)), 512)
    finally:
        transformers.logging.set_verbosity(verbosity)


def test_weights_without_the_pooler_which_no_mean_needs_are_whole(copy, encoder):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    kept = {name: w for name, w in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    assert (Encoder(locate(str(copy)), 512).embed(TEXTS[:4]) == encoder.embed(TEXTS[:4])).all()


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
            lambda d: [(d / name).unlink() for name in ("tokenizer.json", "vocab.txt")],
            r"no tokenizer there \(tokenizer.json, vocab.txt or the like; found: 1_Pooling",
        ),
        (lambda d: (d / "modules.json").unlink(), "without its modules.json, which says how it pools; copy it there"),
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


@pytest.mark.parametrize("name", ["/no/such/place", "a/b/c", "two words", "./model", "../model", "~nosuch/x", "-x"])
def test_a_name_that_is_neither_a_directory_nor_of_the_hub(name):
    with pytest.raises(SpliceError, match="no such directory; give --encoder the directory of a model"):
        locate(name)


@pytest.mark.parametrize("name", ["foo--bar", "models.", "a..b/c"])
def test_a_name_that_the_hub_does_not_allow(name):
    with pytest.raises(SpliceError, match=f"encoder {name}: not a directory, and it cannot be had from the hub"):
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
    assert located.revision == commit
    assert located.identity == Located("x", encoder_directory, None).identity
    assert located.dimension == 384
    with pytest.raises(SpliceError, match=r"encoder some/other: not a directory, and it cannot be had from the hub"):
        locate("some/other")


def test_a_cache_that_holds_a_part_of_a_model_is_refused_or_another_model(encoder_directory, tmp_path, monkeypatch):
    import huggingface_hub.constants as hub

    place = tmp_path / "models--some--encoder" / "snapshots" / cached(tmp_path, encoder_directory)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    whole = locate("some/encoder").identity
    (place / "modules.json").unlink()
    with pytest.raises(SpliceError, match=r"without its modules\.json, which says how it pools"):
        locate("some/encoder")
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        (place / name).unlink()
    shutil.rmtree(place / "1_Pooling")
    assert locate("some/encoder").identity != whole


def test_the_identity_is_that_of_the_files(copy, encoder_directory):
    def of(directory: Path) -> str:
        return Located("x", directory, None).identity

    before = of(copy)
    assert before == of(copy)
    for name in (".git/config.json", ".cache/model.safetensors", "README.md"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("not of the model")
    assert before == of(copy)
    with open(copy / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert before != of(copy)


def test_a_tokenizer_that_adds_nothing_of_its_own_and_a_text_that_leaves_nothing(tmp_path):
    """A small GPT-2 with a byte-level BPE: an empty text has no token at all, and padding has no id."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModel, GPT2Config, GPT2Model

    torch.manual_seed(0)
    GPT2Model(GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=2, n_positions=64)).save_pretrained(tmp_path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}'
    )
    encoder = Encoder(locate(str(tmp_path)), 512)
    texts = ["some text", "", "another, longer text than the first " * 9]
    embeddings = encoder.embed(texts)
    assert embeddings.shape == (3, 32)
    model = AutoModel.from_pretrained(tmp_path).eval()
    for text, embedding in zip(texts[::2], embeddings[::2], strict=True):
        ids = tokenizer.encode(text).ids[: encoder.max_tokens]
        with torch.inference_mode():
            mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(dim=0).numpy()
        np.testing.assert_allclose(embedding, mean, atol=3e-3)


@pytest.mark.parametrize("tokens", [1, 2])
def test_tokens_that_leave_no_text_are_refused(encoder_directory, tokens):
    with pytest.raises(SpliceError, match=f"{tokens} tokens of a document leave none of its text, since 2 are special"):
        Encoder(locate(str(encoder_directory)), tokens)


def test_memory_that_runs_out_is_said_with_what_needs_less(encoder, monkeypatch):
    import torch

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nAnd so on")

    monkeypatch.setattr(encoder, "_forward", fail)
    with pytest.raises(
        BuildFailed, match=r"failed on cpu: CUDA out of memory. Tried .* fewer --workers or --encoder-tokens"
    ):
        encoder.embed(["text"])


def test_the_dimension_is_told_only_where_nothing_may_change_it(copy):
    assert locate(str(copy)).dimension == 384
    pooling = copy / "1_Pooling" / "config.json"
    config = json.loads(pooling.read_text())
    pooling.write_text(json.dumps({**config, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}))
    assert locate(str(copy)).dimension is None
    pooling.write_text(json.dumps(config))
    modules = json.loads((copy / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "own", "type": "sentence_transformers.models.Dense"})
    (copy / "modules.json").write_text(json.dumps(modules))
    assert locate(str(copy)).dimension is None


def test_a_text_is_cut_between_words_in_one_pass():
    assert _head("one two three", 100) == "one two three"
    assert _head("one two three", 9) == "one two"
    assert _head("one two three", 8) == "one"
    assert _head("x" * 50, 9) == "x" * 50
    started = time.process_time()
    for _ in range(20):
        _head("x" * 200_000 + " end", 100_000)
    assert time.process_time() - started < 5  # a search from every place would take minutes


def test_what_is_not_installed_is_named_with_the_extra(monkeypatch):
    import importlib.util

    import splice.encoder

    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faiss" else there(name))
    with pytest.raises(SpliceError, match=r"needs faiss, which is not installed; pip install 'splice-data\[dense\]'"):
        splice.encoder.require()
