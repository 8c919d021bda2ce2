"""`splice build` end to end on a small real build: what comes out, what is reused, and that the bytes are fixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from splice.cli import run
from splice.store import PackedDataset
from splice.tokenizer import load_tokenizer
from splice.validate import Failed, Proof, checks

SMALL = ("--length", "512", "--shard-tokens", "8192", "--workers", "1")


@pytest.fixture
def build(tree, tokenizer_file, tmp_path):
    """Build the tree in this process: build(name, *flags) -> output."""

    def call(name: str, *flags: object, expect: int = 0) -> Path:
        output = tmp_path / name
        arguments = ["build", tree, "--output", output, *SMALL, "--tokenizer", tokenizer_file, *flags]
        assert run(list(map(str, arguments))) == expect
        return output

    return call


def prove(output: Path) -> None:
    for _, check in checks(output):
        check()


def stages(output: Path) -> dict[str, dict]:
    return json.loads((output / "manifest.json").read_text())["run"]["stages"]


def test_every_example_is_exact_and_every_document_is_there_once(built, tree):
    dataset = PackedDataset(built)
    seen = [(s, d) for i in range(len(dataset)) for s, d in zip(dataset[i].sources, dataset[i].doc_ids, strict=True)]
    assert len(seen) == len(set(seen))
    texts = {path.read_bytes() for path in tree.rglob("*.py")}
    refused = dataset.manifest["ledger"]["sources"][tree.name]["duplicate"]
    assert len(list(tree.rglob("*.py"))) - refused == len(texts) == len(seen)
    assert all(len(dataset[i].input_ids) == 512 for i in range(len(dataset)))


def test_the_tokens_of_a_span_decode_to_the_documents_text(built, tree):
    dataset = PackedDataset(built)
    tokenizer = load_tokenizer(str(built / "tokenizer"), fast=False)
    whole = pieces = 0
    for i in range(len(dataset)):
        example = dataset[i]
        for name, start, (a, b) in zip(example.doc_ids, example.doc_offsets, example.doc_spans, strict=True):
            text = (tree / name).read_text()
            ids = example.input_ids[start + 1 : start + 1 + b - a]  # after BOS: tail="trim" cuts only ends
            assert example.input_ids[start] == tokenizer.bos_id
            decoded = tokenizer.decode(ids)
            assert text == decoded if len(decoded) == len(text) else text.startswith(decoded)
            whole += len(decoded) == len(text)
            pieces += len(decoded) != len(text)
    assert whole > 50
    assert pieces > 10


def test_steps_lead_to_related_documents(built):
    scores = json.loads((built / "manifest.json").read_text())["scores"]
    assert scores["mean_step"] > 1.5 * scores["mean_control"] > 0


def test_parents_are_in_the_example_and_come_first_in_the_identity_order(built):
    dataset = PackedDataset(built)
    for i in range(len(dataset)):
        example = dataset[i]
        assert all(p < place for place, p in enumerate(example.parents.tolist()))
        np.testing.assert_array_equal(example.parents < 0, np.isnan(example.scores))


def test_the_proof_holds(built):
    prove(built)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_bytes_do_not_depend_on_workers(built, tree, tokenizer_file, tmp_path, cli, same_dataset, workers):
    output = tmp_path / "out"
    done = cli("build", tree, "--output", output, *SMALL, "--workers", workers, "--tokenizer", tokenizer_file)
    assert done.returncode == 0, done.stderr
    same_dataset(built, output)


def test_bytes_do_not_depend_on_processes_instead_of_threads(built, tree, tokenizer_file, tmp_path, cli, same_dataset):
    output = tmp_path / "out"
    done = cli(
        "build", tree, "--output", output, *SMALL, "--tokenizer", tokenizer_file, "--",
        "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    same_dataset(built, output)


def test_the_trained_tokenizer_and_all_that_follows_do_not_depend_on_workers(tree, tmp_path, cli, same_dataset):
    for workers in (1, 2):
        done = cli(
            "build", tree, "--output", tmp_path / str(workers), *SMALL, "--vocab-size", 400, "--workers", workers
        )
        assert done.returncode == 0, done.stderr
    same_dataset(tmp_path / "1", tmp_path / "2")


def test_bytes_do_not_depend_on_the_number_of_neighbours_kept(build):
    plans = []
    for m in (1, 3, 64):
        output = build(f"m{m}", "--neighbours", m, "--k", 2)
        plans.append([p.read_bytes() for p in sorted((output / "data").iterdir())])
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize(
    "flags",
    [
        ("--k", 2, "--order", "reverse"),
        ("--k", 3, "--order", "shuffle", "--exhausted", "short"),
        ("--tail", "carry", "--join", "eos"),
        ("--tail", "carry", "--join", "bos_eos", "--length", 64),
        ("--tail", "whole", "--join", "none"),
        ("--tail", "whole", "--length", 300, "--exhausted", "short", "--k", 2),
        ("--retriever", "random", "--join", "bos"),
        ("--pack-documents", 50, "--seed", 3),
        ("--dedup", "none", "--max-chars", 1500, "--min-chars", 400),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_every_policy_gives_a_dataset_that_proves_itself(build, flags):
    output = build("out", *flags)
    prove(output)
    ledger = json.loads((output / "manifest.json").read_text())["ledger"]
    sources = ledger["sources"].values()
    if "carry" in flags:
        assert sum(s["trimmed"] for s in sources) == 0
        assert sum(s["split_documents"] for s in sources) > 0
    if "whole" in flags:
        assert sum(s["trimmed"] + s["split_documents"] for s in sources) == 0
    if "random" in flags:
        assert (PackedDataset(output)[0].parents == -1).all()


def test_repositories_stay_together(build):
    output = build("out", "--pack-documents", 100)
    manifest = json.loads((output / "manifest.json").read_text())
    assert [p["documents"] for p in manifest["packs"]] == [80, 80, 80]
    import pyarrow.parquet as pq

    for number in range(3):
        assert (
            len(set(pq.read_table(output / "documents" / f"{number:05d}-0000.parquet").column("repo").to_pylist())) == 1
        )


def test_another_length_reuses_ingest_and_link_and_equals_a_build_from_scratch(build, tmp_path, same_dataset):
    first = build("first", "--work", tmp_path / "work")
    again = build("again", "--work", tmp_path / "work", "--length", 256, "--k", 2, "--seed", 9)
    scratch = build("scratch", "--length", 256, "--k", 2, "--seed", 9)
    same_dataset(again, scratch)
    assert not any(stage["reused"] for stage in stages(first).values())
    reused = {name for name, stage in stages(again).items() if stage["reused"]}
    assert reused == {"read", "assign", "gather", "tokenizer", "tokenise", "index", "search"}


def test_another_k1_reuses_ingest_alone(build, tmp_path):
    build("first", "--work", tmp_path / "work")
    again = build("again", "--work", tmp_path / "work", "--k1", 0.9)
    reused = {name for name, stage in stages(again).items() if stage["reused"]}
    assert reused == {"read", "assign", "gather", "tokenizer", "tokenise"}


def test_another_tokenizer_reuses_the_graph(build, tmp_path):
    build("first", "--work", tmp_path / "work")
    again = build("again", "--work", tmp_path / "work", "--tokenizer", _trained(tmp_path))
    reused = {name for name, stage in stages(again).items() if stage["reused"]}
    assert reused == {"read", "assign", "gather", "index", "search"}
    prove(again)


def _trained(tmp_path: Path) -> Path:
    from splice.tokenizer import train_tokenizer

    train_tokenizer([b"another corpus, another tokenizer " * 20], 300, tmp_path / "other")
    return tmp_path / "other"


def test_a_finished_build_is_not_done_again_and_a_lost_shard_is(build, capsys, same_dataset, built):
    output = build("out")
    capsys.readouterr()
    build("out")
    assert "nothing to do" in capsys.readouterr().out
    lost = min((output / "data").iterdir())
    content = lost.read_bytes()
    lost.unlink()
    build("out")
    assert lost.read_bytes() == content
    same_dataset(built, output)


def test_hugging_face_datasets_reads_the_shards(built, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(
        "parquet", data_files=str(built / "data" / "*.parquet"), cache_dir=str(tmp_path / "cache"), split="train"
    )
    dataset = PackedDataset(built)
    assert len(loaded) == len(dataset)
    for i in (0, len(loaded) - 1):
        assert loaded[i]["input_ids"] == dataset[i].input_ids.tolist()
        assert loaded[i]["doc_ids"] == dataset[i].doc_ids
        assert loaded[i]["doc_spans"] == dataset[i].doc_spans.tolist()


def test_packs_of_one_seed_differ_from_another(build):
    a, b = build("a", "--seed", 0), build("b", "--seed", 1)
    assert PackedDataset(a)[0].doc_ids != PackedDataset(b)[0].doc_ids


@pytest.mark.parametrize(
    ("known", "said"), [("topic", "that hold the unknown token passed over"), ("", "not checked: ")]
)
def test_a_tokenizer_that_loses_text_is_no_fault_of_the_dataset(tmp_path, capsys, known, said):
    """One of whole words, without bytes to fall back on: what is not in its vocabulary is [UNK], and its text is lost."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"[UNK]": 0, "<s>": 1, "</s>": 2, **({known: 3} if known else {})}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "src").mkdir()
    for i in range(40):
        (tmp_path / "src" / f"{i}.txt").write_text(f"{known} " * (i + 1) + "stranger" * (not known or i % 2))
    arguments = ["build", "src", "--output", "out", *SMALL, "--tokenizer", "tokenizer.json"]
    assert run([str(tmp_path / a) if a in ("src", "out", "tokenizer.json") else a for a in arguments]) == 0
    assert run(["validate", str(tmp_path / "out")]) == 0
    assert said in capsys.readouterr().out


class TestTampering:
    """`splice validate` fails when a file is changed, and says which."""

    @pytest.fixture
    def copy(self, built, tmp_path):
        target = tmp_path / "copy"
        shutil.copytree(built, target, ignore=shutil.ignore_patterns("work"))
        return target

    def fails(self, output: Path, capsys) -> str:
        assert run(["validate", str(output)]) == 1
        return capsys.readouterr().out

    def test_untouched(self, copy):
        assert run(["validate", str(copy)]) == 0

    def test_a_changed_byte(self, copy, capsys):
        shard = min((copy / "data").iterdir())
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        assert f"data/{shard.name} was changed" in self.fails(copy, capsys)

    def test_a_shard_too_many(self, copy, capsys):
        shutil.copy(min((copy / "data").iterdir()), copy / "data" / "train-extra.parquet")
        assert "train-extra.parquet is not in the manifest" in self.fails(copy, capsys)

    def test_a_shard_too_few(self, copy, capsys):
        shard = min((copy / "data").iterdir())
        shard.unlink()
        assert f"data/{shard.name} is missing" in self.fails(copy, capsys)

    def test_a_ledger_that_lies(self, copy, capsys):
        manifest = json.loads((copy / "manifest.json").read_text())
        source = next(iter(manifest["ledger"]["sources"].values()))
        source["trimmed"] += 1
        (copy / "manifest.json").write_text(json.dumps(manifest))
        assert "trimmed is" in self.fails(copy, capsys)

    def test_a_document_lost_from_the_table_of_refused(self, copy, capsys):
        import pyarrow.parquet as pq

        path = copy / "documents" / "00000-0000.parquet"
        pq.write_table(pq.read_table(path).slice(1), path)
        assert "documents listed" in self.fails(copy, capsys)

    @pytest.mark.parametrize("column", ["offset", "end", "document", "score"])
    def test_a_plan_that_is_another(self, copy, capsys, column):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = copy / "plan" / "00000.parquet"
        table = pq.read_table(path)
        values = table.column(column).to_numpy().copy()
        values[3] = values[4] + 1
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, pa.array(values)), path)
        assert "fails" in self.fails(copy, capsys)

    def test_a_document_that_the_plan_lost(self, copy):
        import pyarrow.parquet as pq

        path = copy / "plan" / "00000.parquet"
        table = pq.read_table(path)
        pq.write_table(table.slice(0, table.num_rows - 1), path)
        lost = table.column("document")[table.num_rows - 1].as_py()
        with pytest.raises(Failed, match=f"document {lost} is in no example"):
            Proof(copy).plan()

    def test_examples_in_another_order(self, copy):
        import pyarrow.parquet as pq

        proof = Proof(copy)
        path = copy / "data" / proof.dataset.shards[0]
        table = pq.read_table(path)
        pq.write_table(table.take([1, 0, *range(2, table.num_rows)]), path)
        with pytest.raises(Failed, match="the seed's order"):
            Proof(copy).examples()

    def test_an_id_that_another_tokenizer_gave(self, copy):
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = copy / "data" / Proof(copy).dataset.shards[0]
        table = pq.read_table(path)
        rows = table.column("input_ids").to_pylist()
        rows[0][5] = 1  # a special token in the middle of a text
        pq.write_table(table.set_column(0, table.schema.field(0), pa.array(rows, table.schema.field(0).type)), path)
        with pytest.raises(Failed, match="special token 1 stands"):
            Proof(copy).examples()
