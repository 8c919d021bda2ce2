"""Perplexity by position: the sums of a full pass, in buckets, of texts however they lie."""

from __future__ import annotations

import gzip
import io
import json
import math
import shutil
import tarfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from splice.cli import run
from splice.eval.prompts import Prompter
from splice.eval.results import read_results
from splice.tokenizer import load_tokenizer

LINES = "".join(f"kana lonas_x {i} ruvi9 topic{i % 5}_{i % 12} " for i in range(2000))


def evaluate(output, model, data, *more):
    return run(["eval", "perplexity", "--data", str(data), "--model", str(model), "--output", str(output), *more])


def test_buckets_are_sums_of_a_full_pass(llama, tmp_path):
    """BOS first, position p is that of a token with p before it."""
    import transformers

    (tmp_path / "text.txt").write_text(LINES)
    assert evaluate(tmp_path / "a", llama, tmp_path / "text.txt", "--context", "600", "--windows", "2") == 0
    (result,) = read_results(tmp_path / "a")
    assert result.name == "perplexity-text-600"
    tokenizer = load_tokenizer(str(llama))
    ids = Prompter(tokenizer, None).ids(LINES)
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    total = 0.0
    for sample, start in zip(result.samples, (0, 600), strict=True):
        window = [tokenizer.bos_id, *ids[start : start + 599]]
        with torch.no_grad():
            logits = model(torch.tensor([window])).logits[0].log_softmax(-1)
        losses = -logits[range(599), window[1:]].double().numpy()  # of positions 1 to 599
        assert [bucket[:2] for bucket in sample["buckets"]] == [[2**k, min(2 ** (k + 1), 600)] for k in range(10)]
        for begin, end, nats, tokens in sample["buckets"]:
            assert tokens == end - begin
            assert math.isclose(nats, losses[begin - 1 : end - 1].sum(), rel_tol=1e-5)
        assert math.isclose(sample["scores"]["nll"], losses.mean(), rel_tol=1e-5)
        total += losses.sum()
    assert math.isclose(result.facts["metrics"]["nll"]["mean"], total / 1198, rel_tol=1e-5)
    assert math.isclose(result.facts["metrics"]["perplexity"]["mean"], math.exp(total / 1198), rel_tol=1e-4)
    assert (result.facts["clusters"], result.facts["unit"]) == (1, "documents")


def test_texts_however_they_lie(llama, tmp_path):
    texts = {f"t{i}.txt": LINES[i * 50 :] for i in range(3)} | {"short.txt": "kana"}
    (tmp_path / "tree").mkdir()
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        for name, text in texts.items():
            (tmp_path / "tree" / name).write_text(text)
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress(texts["t0.txt"].encode()))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts.values()))
    shutil.copytree(tmp_path / "tree", tmp_path / "packed")
    (tmp_path / "packed" / "t1.txt").unlink()
    (tmp_path / "packed" / "t1.txt.gz").write_bytes(gzip.compress(texts["t1.txt"].encode()))
    (tmp_path / "packed" / "model.bin").write_bytes(bytes(range(256)) * 100)  # no text
    got = {}
    for source, more in (
        ("all.tar.gz", []),
        ("tree", []),
        ("packed", []),
        ("rows.jsonl", ["--text-field", "body"]),
        ("one.txt.gz", []),
    ):
        output = tmp_path / f"of-{source}"
        assert evaluate(output, llama, tmp_path / source, "--context", "300", *more) == 0
        got[source] = [sample["buckets"] for sample in read_results(output)[0].samples]
    assert len(got["all.tar.gz"]) == 3
    assert got["all.tar.gz"] == got["tree"] == got["packed"] == got["rows.jsonl"]
    assert got["one.txt.gz"] == got["tree"][:1]


def test_other_texts_in_a_directory_are_other_data(llama, tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name / "books").mkdir(parents=True)
        (tmp_path / name / "books" / "t.txt").write_text(LINES[ord(name) :])
    assert evaluate(tmp_path / "out", llama, tmp_path / "a" / "books", "--context", "300") == 0
    assert evaluate(tmp_path / "out", llama, tmp_path / "b" / "books", "--context", "300") == 2
    assert "holds another run (data: " in " ".join(capsys.readouterr().err.split())


def test_texts_of_one_name_are_two(llama, tmp_path):
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for text in (LINES, LINES[99:]):
            member = tarfile.TarInfo("t.txt")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    assert evaluate(tmp_path / "a", llama, tmp_path / "twice.tar", "--context", "300") == 0
    assert [s["cluster"] for s in read_results(tmp_path / "a")[0].samples] == ["t.txt", "t.txt (2)"]


def test_a_packed_dataset_is_read_as_it_is(llama, built, tmp_path):
    assert evaluate(tmp_path / "a", llama, built, "--context", "512") == 0
    (result,) = read_results(tmp_path / "a")
    from splice.store import PackedDataset

    dataset = PackedDataset(built)
    whole = [i for i in range(len(dataset)) if dataset[i].padding == 0]
    assert len(whole) < len(dataset), "one with padding, which is no text"
    assert [sample["id"] for sample in result.samples] == [f"example-{i}#0" for i in whole]
    assert all(sample["prefix_tokens"] == 512 for sample in result.samples)


def test_old_texts_that_are_no_utf8(llama, tmp_path):
    (tmp_path / "old.txt").write_bytes(("“kana” " + LINES).encode("cp1252"))
    assert evaluate(tmp_path / "a", llama, tmp_path / "old.txt", "--context", "64") == 0
    (tmp_path / "new.txt").write_text("“kana” " + LINES)
    assert evaluate(tmp_path / "b", llama, tmp_path / "new.txt", "--context", "64") == 0
    a, b = (read_results(tmp_path / name)[0].samples[0]["buckets"] for name in "ab")
    assert np.allclose(a, b)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no text; name some with --data"),
        (["--data", "nowhere.txt"], "nowhere.txt"),
        (["--data", "{tmp}/short.txt"], "no document of 32,768 tokens or more; take a shorter --context"),
        (["--data", "{tmp}/torn.txt.gz"], "torn.txt.gz: cannot be read"),
        (["--data", "{tmp}/short.txt", "--context", "4"], "--context 4, but the shortest is 16"),
    ],
)
def test_bad_input(llama, tmp_path, arguments, said, capsys):
    (tmp_path / "short.txt").write_text("kana")
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(LINES.encode())[:-20])
    filled = [a.replace("{tmp}", str(tmp_path)) for a in arguments]
    assert run(["eval", "perplexity", "--model", str(llama), "--output", str(tmp_path / "a"), *filled]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_text_over_the_context(llama, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(LINES)
    assert evaluate(tmp_path / "a", llama, tmp_path / "text.txt", "--context", "5000") == 2
    assert "text.txt#0: a prompt of 5,000 tokens" in " ".join(capsys.readouterr().err.split())
    assert evaluate(tmp_path / "b", llama, tmp_path / "text.txt", "--context", "5000", "--max-context", "8192") == 0
