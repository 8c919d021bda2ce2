"""`splice build --retriever dense` and hybrid end to end, with a real encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from splice.cli import run
from splice.validate import checks

SMALL = ("--length", "512", "--shard-tokens", "8192", "--encoder-tokens", "32")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, grow_tree) -> Path:
    return grow_tree(tmp_path_factory.mktemp("dense"), 330)  # two blocks of embeddings


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def build(corpus, work, tokenizer_file, encoder_directory, tmp_path):
    """build(name, *flags) -> output. The tests share one work directory, so that a block is embedded once."""

    def call(name: str, *flags: object, expect: int = 0) -> Path:
        arguments = [
            "build",
            corpus,
            "--output",
            tmp_path / name,
            *SMALL,
            "--tokenizer",
            tokenizer_file,
            "--work",
            work,
        ]
        arguments += ["--encoder", encoder_directory, "--workers", 1, *flags]
        assert run(list(map(str, arguments))) == expect
        return tmp_path / name

    return call


def manifest(output: Path) -> dict:
    return json.loads((output / "manifest.json").read_text())


def prove(output: Path) -> None:
    assert all({name: check() for name, check in checks(output)}.values())


def graph_of(output: Path) -> np.ndarray:
    blocks = [pq.read_table(path).column("neighbours").to_pylist() for path in sorted((output / "graph").iterdir())]
    return np.array([row for block in blocks for row in block])


def test_dense_neighbours_are_brute_force_inner_products_of_the_encoders_own_embeddings(
    build, corpus, encoder_directory
):
    from sentence_transformers import SentenceTransformer

    output = build("out", "--retriever", "dense")
    prove(output)
    documents = pq.read_table(sorted((output / "documents").glob("0*.parquet"))[0])
    model = SentenceTransformer(str(encoder_directory), device="cpu", local_files_only=True)
    model.max_seq_length = 32
    texts = [(corpus / name).read_text() for name in documents.column("id").to_pylist()]
    embeddings = model.encode(texts).astype(np.float16).astype(np.float64)
    scores = embeddings @ embeddings.T
    np.fill_diagonal(scores, -np.inf)
    listed = graph_of(output)
    assert listed.shape == (330, 32)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :32]
    kept, reference = (np.take_along_axis(scores, rows, axis=1) for rows in (listed, best))
    np.testing.assert_allclose(kept, reference, atol=2e-3)  # float16 may swap what is that close
    assert (listed == best).mean() > 0.9


def test_the_manifest_says_which_encoder(build):
    facts = manifest(build("out", "--retriever", "dense"))
    encoder = facts["encoder"]
    assert (encoder["dimension"], encoder["tokens"], encoder["revision"]) == (384, 32, None)
    assert encoder["parts"] == ["Transformer", "Pooling", "Normalize"]
    assert encoder["devices"] in (["cpu"], ["cuda"])
    assert {"torch", "transformers", "sentence-transformers", "faiss"} <= facts["versions"].keys()
    assert facts["scores"]["mean_step"] > facts["scores"]["mean_control"] > 0


def test_hybrid_goes_by_both_and_shares_the_embeddings(build):
    dense, hybrid = build("dense", "--retriever", "dense"), build("hybrid", "--retriever", "hybrid")
    bm25 = build("bm25")
    prove(hybrid)
    assert manifest(hybrid)["run"]["stages"]["embed"]["reused"]
    graphs = [graph_of(path).tolist() for path in (hybrid, dense, bm25)]
    assert len({tuple(row[0] for row in graph) for graph in graphs}) == 3
    places = [(d.index(h[0]), b.index(h[0])) for h, d, b in zip(*graphs, strict=True) if h[0] in d and h[0] in b]
    assert len(places) > 0.9 * 326  # the best of both is far up in each
    summed = build("sum", "--retriever", "hybrid", "--merge", "sum")
    assert graph_of(summed).tolist() != graph_of(hybrid).tolist()
    assert 0.5 < manifest(summed)["scores"]["mean_step"] <= 1


@pytest.mark.parametrize("retriever", ["dense", "hybrid"])
@pytest.mark.parametrize(
    "flags",
    [
        ("--k", 3, "--order", "shuffle", "--exhausted", "short"),
        ("--tail", "carry", "--pack-documents", 120),
        ("--tail", "whole", "--noise", 0.4),
        ("--max-uses", 2, "--neighbours", 2, "--k", 2),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_every_policy_holds(build, retriever, flags):
    output = build("out", "--retriever", retriever, *flags)
    prove(output)
    assert manifest(output)["scores"]["steps"] > 50


@pytest.mark.parametrize("retriever", ["dense", "hybrid"])
def test_bytes_depend_neither_on_workers_nor_on_what_was_there_nor_on_the_lists_kept(
    build, retriever, tmp_path, same_dataset
):
    build("first", "--retriever", retriever, "--work", tmp_path / "w1", "--workers", 2)
    lost = [*(tmp_path / "w1").glob("*/done/embed-*-00000256.json"), *(tmp_path / "w1").glob("link-*/done/*")]
    assert len(lost) >= 3
    for path in lost:  # as where it ended in the middle of the second block
        path.unlink()
    again = build("again", "--retriever", retriever, "--work", tmp_path / "w1", "--workers", 1)
    assert not manifest(again)["run"]["stages"]["embed"]["reused"]
    fresh = build("fresh", "--retriever", retriever, "--work", tmp_path / "w2", "--workers", 3)
    same_dataset(again, fresh)
    few = build("few", "--retriever", retriever, "--neighbours", 2)
    assert all((few / "data" / path.name).read_bytes() == path.read_bytes() for path in (fresh / "data").iterdir())


def test_embeddings_of_another_dimension_are_refused_before_any_work(build, tmp_path, capsys):
    work = tmp_path / "w"
    build("first", "--retriever", "dense", "--work", work)
    receipt = next(work.glob("embed-*/done/embed-*.json"))
    receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "dimension": 768}))
    capsys.readouterr()
    build("second", "--retriever", "dense", "--k", 2, "--work", work, expect=2)
    said = capsys.readouterr().err
    assert "holds embeddings of dimension 768, and encoder" in said
    assert "gives 384; remove the directory to embed again" in said
    assert not (tmp_path / "second").exists()


def test_a_block_of_another_dimension_is_found_where_it_is_read(build, tmp_path, capsys):
    work = tmp_path / "w"
    build("first", "--retriever", "dense", "--work", work)
    block = max(work.glob("embed-*/embeddings/*.npy"))
    np.save(block, np.zeros((74, 768), np.float16))
    capsys.readouterr()
    build("second", "--retriever", "hybrid", "--work", work, expect=2)
    said = capsys.readouterr().err
    assert f"{block}: embeddings of dimension 768, the others of this pack have 384" in said
    assert "embed again" in said


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_an_encoder_without_weights_is_refused_before_any_work(build, tmp_path, encoder_directory, capsys, flags):
    model = shutil.copytree(encoder_directory, tmp_path / "model")
    (model / "model.safetensors").unlink()
    build("out", "--retriever", "dense", "--encoder", model, *flags, expect=2)
    assert "model: no weights there (model.safetensors or pytorch_model.bin" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_reckons_with_the_encoder(build, capsys):
    def seconds(*flags: object) -> float:
        build("out", "--dry-run", *flags)
        line = next(line for line in capsys.readouterr().out.splitlines() if "CPU time" in line)
        return float(line.split()[3].replace(",", ""))

    assert seconds("--retriever", "dense", "--encoder-tokens", 512) > seconds("--retriever", "dense") > seconds()
