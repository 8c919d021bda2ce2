"""`splice build` end to end on a small real build: what comes out, what is reused, and that the bytes are fixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
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


def prove(output: Path) -> dict[str, str]:
    said = {name: check() for name, check in checks(output)}  # a check that fails raises
    assert list(said) == ["files", "checksums", "examples", "plan", "ledger", "tokens"]
    assert all(said.values())
    return said


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
    assert "each used once" in prove(built)["plan"]


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


def test_examples_of_many_packs_are_laid_out_first_to_the_same_bytes(build, monkeypatch, same_dataset):
    flags = ("--pack-documents", 10)
    output = build("out", *flags)
    assert stages(output)["lay"]["tasks"] == len(json.loads((output / "manifest.json").read_text())["packs"]) == 24
    assert not list((output / "work").rglob("laid"))
    monkeypatch.setattr("splice.pipelines.stages.PACKS_AT_HAND", 24)
    apart = build("apart", *flags)
    assert "lay" not in stages(apart)
    same_dataset(apart, output)
    prove(output)


def test_a_lost_shard_of_many_packs_is_written_again(build, monkeypatch, same_dataset):
    flags = ("--pack-documents", 10)
    first, again = build("first", *flags), build("again", *flags)
    lost = min((again / "data").iterdir())
    lost.unlink()
    build("again", *flags)
    same_dataset(first, again)
    assert not list((again / "work").rglob("laid"))


def test_every_build_writes_its_report_and_one_killed_before_that_does_when_run_again(build, capsys):
    output = build("out")
    page = output / "report.html"
    first = page.read_bytes()
    assert b"<svg" in first
    assert f"look at: {page}" in capsys.readouterr().out
    page.unlink()
    build("out")
    assert page.read_bytes() == first
    assert run(["report", str(output)]) == 0
    assert page.read_bytes() == first


def test_a_report_that_cannot_be_made_does_not_undo_a_build(build, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise RuntimeError("no font")

    monkeypatch.setattr("splice.pipelines.finish.write_report", fail)
    output = build("out")
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"no report.html (RuntimeError: no font); the dataset is complete, and `splice report {output}` tries again"
        in said
    )
    assert "documents in" in said
    prove(output)


def test_a_report_of_several_goes_where_it_is_told_or_here(build, tmp_path, monkeypatch, capsys):
    one, two = build("one"), build("two", "--retriever", "random")
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(one), str(two)]) == 0
    assert "report: report.html" in capsys.readouterr().out
    assert run(["report", str(one), str(two), "--output", "side.html"]) == 0
    assert (
        (tmp_path / "side.html").read_bytes()
        == (tmp_path / "report.html").read_bytes()
        != (one / "report.html").read_bytes()
    )
    assert run(["report", str(one), "--text"]) == 0
    assert "documents in" in capsys.readouterr().out
    (tmp_path / "file").write_text("mine")
    assert run(["report", str(one), "--output", "file/page.html"]) == 2
    assert "file/page.html: cannot be written (" in capsys.readouterr().err
    assert run(["report", "nowhere"]) == 2
    assert "nowhere: no such directory" in capsys.readouterr().err


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


class TestRetrievers:
    """Each gives the same plan format: exact examples, a ledger that balances, edges that mean what they say."""

    @pytest.fixture
    def repositories(self, tmp_path, grow_tree):
        return grow_tree(tmp_path / "corpus", 150, seed=3)

    @pytest.fixture
    def pack(self, repositories, tokenizer_file, tmp_path):
        def call(name: str, *flags: object) -> PackedDataset:
            output = tmp_path / name
            arguments = ["build", repositories, "--output", output, "--work", tmp_path / "work", *SMALL]
            assert run([str(a) for a in (*arguments, "--tokenizer", tokenizer_file, *flags)]) == 0
            prove(output)
            return PackedDataset(output)

        return call

    def edges(self, dataset: PackedDataset) -> list[tuple[str, str, float]]:
        examples = [dataset[i] for i in range(len(dataset))]
        return [
            (e.doc_ids[p], d, float(s))
            for e in examples
            for p, d, s in zip(e.parents, e.doc_ids, e.scores, strict=True)
            if p >= 0
        ]

    @pytest.mark.parametrize("k", [1, 3])
    @pytest.mark.parametrize("order", ["identity", "reverse", "shuffle"])
    def test_repo(self, pack, k, order):
        dataset = pack("out", "--retriever", "repo", "--k", k, "--order", order, "--length", 2048)
        edges = self.edges(dataset)
        assert edges
        assert all(a.split("/")[0] == b.split("/")[0] for a, b, _ in edges)
        same = [a.rsplit("/", 1)[0] == b.rsplit("/", 1)[0] for a, b, _ in edges]
        assert np.mean(same) > 0.6  # fifteen directories of ten files: at random it is a fifth
        assert {s for (_, _, s), together in zip(edges, same, strict=True) if together} == {3.0}
        scores = dataset.manifest["scores"]
        assert scores["mean_step"] > 2 * scores["mean_control"]
        assert not any(Path(dataset.path / "graph").glob("*"))

    def test_domain(self, pack, repositories):
        for i, path in enumerate(sorted(repositories.rglob("*.py"))):
            if i % 3 == 0:
                path.rename(path.with_suffix(".TXT" if i % 2 else ".txt"))
        dataset = pack("out", "--retriever", "domain", "--domain-field", "extension")
        edges = self.edges(dataset)
        assert {Path(a).suffix.lower() for a, _, _ in edges} == {".py", ".txt"}
        assert all(Path(a).suffix.lower() == Path(b).suffix.lower() and s == 1.0 for a, b, s in edges)
        assert len({Path(a).parts[0] == Path(b).parts[0] for a, b, _ in edges}) == 2  # within a domain at random

    def test_a_domain_of_rows(self, tmp_path, tokenizer_file):
        rows = [{"text": f"word{i} " * 40, "topic": f"t{i % 3}" if i % 10 else None} for i in range(200)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        arguments = [
            "build",
            tmp_path / "rows.jsonl",
            "--output",
            tmp_path / "out",
            *SMALL,
            "--tokenizer",
            tokenizer_file,
        ]
        assert run([str(a) for a in (*arguments, "--retriever", "domain", "--domain-field", "topic")]) == 0
        prove(tmp_path / "out")
        number = {f"rows.jsonl:{i + 1}": row["topic"] for i, row in enumerate(rows)}
        edges = self.edges(PackedDataset(tmp_path / "out"))
        assert all(number[a] == number[b] for a, b, _ in edges)
        assert {number[a] for a, _, _ in edges} == {"t0", "t1", "t2", None}

    @pytest.mark.parametrize("tail", ["trim", "whole"])
    def test_documents_used_again(self, pack, tail, capsys):
        once, thrice = (pack(f"{n}", "--max-uses", n, "--tail", tail, "--k", 2) for n in (1, 3))
        ledgers = [next(iter(d.manifest["ledger"]["sources"].values())) for d in (once, thrice)]
        assert ledgers[0]["reuses"] == ledgers[0]["reused_tokens"] == 0
        assert ledgers[1]["reuses"] > 20
        assert ledgers[1]["tokens_in"] == ledgers[0]["tokens_in"]
        assert thrice.manifest["scores"]["mean_step"] > once.manifest["scores"]["mean_step"]
        assert "documents used again" in capsys.readouterr().out
        ids = [d for i in range(len(thrice)) for d in thrice[i].doc_ids]
        assert len(ids) > len(set(ids))
        assert all(len(set(thrice[i].doc_ids)) == len(thrice[i].doc_ids) for i in range(len(thrice)))

    def test_noise(self, pack):
        means = [pack(f"{p}", "--noise", p).manifest["scores"] for p in (0, 0.5, 1)]
        assert means[0]["mean_step"] > means[1]["mean_step"] > means[2]["mean_step"]
        assert means[2]["mean_step"] < 1.5 * means[2]["mean_control"]

    def test_link_is_not_made_again_for_another_walk(self, pack):
        pack("a")
        assert stages(pack("b", "--noise", 0.5, "--max-uses", 2).path)["search"]["reused"]
        assert "search" not in stages(pack("c", "--retriever", "repo").path)


def test_a_dataset_that_uses_a_document_too_often_fails(build, tmp_path):
    """What --max-uses 2 makes is wrong under a manifest that says 1."""
    output = build("out", "--max-uses", "2")
    prove(output)
    manifest = json.loads((output / "manifest.json").read_text())
    manifest["settings"]["max_uses"] = 1
    (output / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Failed, match="used more than once"):
        Proof(output).plan()


class TestCleanInput:
    """Near-duplicates and evaluation data are dropped, listed with what they repeat, and balance in the ledger."""

    @pytest.fixture
    def corpus(self, tmp_path, grow_tree):
        """90 files; ten of them again with two words changed, five with a question of an evaluation inside."""
        root = grow_tree(tmp_path / "corpus", 90, seed=8)
        files = [path for path in sorted(root.rglob("*.py")) if len(path.read_text().split()) > 150]
        for i, path in enumerate(files[:10]):
            words = path.read_text().split(" ")
            words[20], words[90] = "changed", "too"
            (root / "r2" / f"zz_copy{i}.py").write_text(" ".join(words))
        for path in files[20:25]:
            path.write_text(path.read_text() + "\n# " + self.QUESTION)
        (tmp_path / "eval.jsonl").write_text(json.dumps({"question": self.QUESTION}) + "\n")
        return root

    QUESTION = "In which year did the old harbour of the northern city first freeze over completely in winter"

    def build(self, corpus: Path, tokenizer_file: Path, name: str, *flags: object, expect: int = 0) -> Path:
        output = corpus.parent / name
        arguments = ["build", corpus, "--output", output, *SMALL, "--tokenizer", tokenizer_file, *flags]
        assert run([str(a) for a in arguments]) == expect
        if expect == 0:
            prove(output)
        return output

    def refused(self, output: Path, reason: str) -> dict[str, str]:
        rows = pq.read_table(output / "documents" / "refused.parquet").to_pylist()
        return {row["id"]: row["duplicate_of"] for row in rows if row["reason"] == reason}

    def test_near_duplicates(self, corpus, tokenizer_file, same_dataset):
        output = self.build(corpus, tokenizer_file, "near", "--dedup", "near", "--near-threshold", 0.7)
        copies = self.refused(output, "near_duplicate")
        assert sorted(copies) == [f"r2/zz_copy{i}.py" for i in range(10)]
        assert all(original.startswith("corpus:r") for original in copies.values())
        ledger = json.loads((output / "manifest.json").read_text())["ledger"]["sources"]["corpus"]
        assert (ledger["near_duplicate"], ledger["packed"]) == (10, 90)
        two = self.build(corpus, tokenizer_file, "two", "--dedup", "near", "--near-threshold", 0.7, "--workers", 2)
        same_dataset(output, two)
        assert not list(output.glob("work/*/read/*.npy"))
        exact = self.build(corpus, tokenizer_file, "exact")
        assert json.loads((exact / "manifest.json").read_text())["ledger"]["sources"]["corpus"]["packed"] == 100

    def test_what_a_copy_of_a_near_duplicate_repeats_is_in_the_dataset(self, corpus, tokenizer_file):
        near = sorted(corpus.rglob("zz_copy*.py"))[0]
        (corpus / "r2" / "zzz_again.py").write_bytes(near.read_bytes())
        output = self.build(corpus, tokenizer_file, "out", "--dedup", "near", "--near-threshold", 0.7)
        (again,) = self.refused(output, "duplicate").values()
        tables = [pq.read_table(path) for path in (output / "documents").glob("0*.parquet")]
        assert again.removeprefix("corpus:") in {name for table in tables for name in table.column("id").to_pylist()}

    def test_evaluation_data(self, corpus, tokenizer_file, capsys):
        flags = ("--decontaminate", corpus.parent / "eval.jsonl")
        output = self.build(corpus, tokenizer_file, "out", *flags)
        assert list(self.refused(output, "contaminated").values()) == [str(corpus.parent / "eval.jsonl")] * 5
        tokenizer = load_tokenizer(str(output / "tokenizer"), fast=False)
        dataset = PackedDataset(output)
        assert not any("northern city" in tokenizer.decode(dataset[i].input_ids) for i in range(len(dataset)))
        assert (
            self.refused(self.build(corpus, tokenizer_file, "long", *flags, "--ngram-words", 18), "contaminated") == {}
        )
        capsys.readouterr()
        (corpus.parent / "eval.jsonl").write_text('{"question": "another one"}\n')
        self.build(corpus, tokenizer_file, "out", *flags, expect=2)
        assert "holds a build with other" in capsys.readouterr().err

    def test_an_evaluation_file_that_is_not_there_is_named_before_any_work(self, corpus, tokenizer_file, capsys):
        for flags in ((), ("--dry-run",)):
            gone = ("--decontaminate", corpus / "gone.jsonl", *flags)
            output = self.build(corpus, tokenizer_file, "out", *gone, expect=2)
            assert "gone.jsonl: cannot be read to decontaminate by" in capsys.readouterr().err
            assert not output.exists()


def test_the_control_asks_the_same_documents(build, tmp_path, tokenizer_file):
    """A long document scores high as a query with any other, and is never one here: it fills its example."""
    for i in range(60):
        words = [f"common{j}" for j in range(20)] + [f"topic{i % 6}_{j}" for j in range(10)]
        path = tmp_path / "src" / f"{i:02d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(" ".join(words) + " " + f"own{i} " * 3)
    for i in range(20):
        long = " ".join(f"common{j % 20} topic{j % 6}_{j % 10}" for j in range(1000))
        (tmp_path / "src" / f"long{i}.txt").write_text(f"{long} {i}")
    arguments = ["build", tmp_path / "src", "--output", tmp_path / "out", *SMALL, "--tokenizer", tokenizer_file]
    assert run([str(a) for a in arguments]) == 0
    scores = json.loads((tmp_path / "out" / "manifest.json").read_text())["scores"]
    assert scores["mean_step"] > scores["mean_control"] > 0
