"""Mixtures of real small builds: shares to a thousandth, links instead of copies, and errors before any work."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from splice.cli import run
from splice.errors import SpliceError
from splice.mix import resolve_mix
from splice.store import PackedDataset
from splice.validate import Failed
from splice.validate_mixture import MixtureProof

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory, grow_tree, tokenizer_file) -> Path:
    """a (bm25), b (repo) and c (random): some thousand examples of 64 tokens each, in shards of 64 examples."""
    root = tmp_path_factory.mktemp("datasets")
    for name, retriever, seed in (("a", "bm25", 1), ("b", "repo", 2), ("c", "random", 3)):
        make(root, grow_tree(root / f"tree-{name}", 240, seed=seed), tokenizer_file, name, "--retriever", retriever)
    return root


def make(root: Path, tree: Path, tokenizer: Path, name: str, *flags: object) -> None:
    given = {"--length": 64, "--shard-tokens": 4096, "--workers": 1, "--tokenizer": tokenizer, "--tail": "carry"}
    given |= dict(zip(flags[::2], flags[1::2], strict=True))
    flat = [str(value) for pair in given.items() for value in pair]
    assert run(["build", str(tree), "--output", str(root / name), "--work", str(root / "work"), *flat]) == 0


@pytest.fixture
def mix(datasets, tmp_path, monkeypatch):
    """mix(parts, *flags, **settings) -> exit code; the output is "out"."""
    monkeypatch.chdir(tmp_path)

    def call(parts: list[dict], *flags: object, output: str = "out", **values: object) -> int:
        parts = [{**p, "dataset": str(datasets / p["dataset"])} if "dataset" in p else p for p in parts]
        Path("mix.yaml").write_text(yaml.safe_dump({"datasets": parts, **values}))
        return run(["mix", "mix.yaml", "--output", output, *map(str, flags)])

    return call


def manifest(output: str = "out") -> dict:
    return json.loads((Path(output) / "manifest.json").read_text())


PAPER = [{"dataset": "c", "share": 0.5}, {"dataset": "b", "share": 0.25}, {"dataset": "a", "share": 0.25}]


def test_the_papers_mixture_in_small(mix, datasets, capsys):
    assert mix(PAPER, "--tokens", 64_000) == 0
    said = capsys.readouterr().out
    assert "50.0" in said
    assert run(["validate", "out"]) == 0
    parts = {part["name"]: part for part in manifest()["mixture"]}
    for name, share in (("a", 0.25), ("b", 0.25), ("c", 0.5)):
        assert abs(parts[name]["share_reached"] - share) <= 0.001
    assert abs(manifest()["tokens"] - 64_000) < 200
    # What is in it are the datasets' own first examples.
    mixture = PackedDataset("out")
    expected: Counter[bytes] = Counter()
    for name, part in parts.items():
        dataset = PackedDataset(datasets / name)
        expected.update(dataset[i].input_ids.tobytes() for i in range(part["examples"]))
    assert Counter(mixture[i].input_ids.tobytes() for i in range(len(mixture))) == expected
    assert len(mixture) == sum(part["examples"] for part in parts.values())


def test_whole_shards_are_links_and_a_dataset_gives_one_file_of_its_own_at_most(mix):
    assert mix(PAPER, "--tokens", 64_000) == 0
    own = [s for s in manifest()["shards"] if os.stat(Path("out/data") / s["file"]).st_nlink == 1]
    assert len(own) <= len(PAPER)
    assert len(manifest()["shards"]) > 12
    assert all(s["examples"] < 64 for s in own)


def test_other_readers_see_the_mixture_too(mix):
    from datasets import load_dataset

    assert mix(PAPER, "--tokens", 40_000) == 0
    rows = load_dataset("parquet", data_files="out/data/*.parquet", split="train", cache_dir="cache")
    assert len(rows) == sum(part["examples"] for part in manifest()["mixture"])
    assert Counter(rows["retriever"]).keys() == {"bm25", "repo", "random"}


def test_without_tokens_it_is_as_large_as_the_shares_allow(mix, datasets):
    assert mix(PAPER) == 0
    assert run(["validate", "out"]) == 0
    full = [part["name"] for part in manifest()["mixture"] if part["examples"] == part["of_examples"]]
    assert len(full) == 1


def test_a_dataset_that_runs_out_is_named_unless_it_may_repeat(mix, capsys):
    assert mix([{"dataset": "a", "share": 0.9}, {"dataset": "b", "share": 0.1}], "--tokens", 600_000) == 2
    said = capsys.readouterr().err
    assert "splice: a: runs out: 0.9 of 600,000 tokens are 540,000, and it holds" in said
    times = int(said.split("`repeat: ")[1].split("`")[0])
    assert not Path("out").exists()
    assert (
        mix([{"dataset": "a", "share": 0.9, "repeat": times}, {"dataset": "b", "share": 0.1}], "--tokens", 600_000) == 0
    )
    assert run(["validate", "out"]) == 0
    part = manifest()["mixture"][0]
    assert (times - 1) * part["of_examples"] < part["examples"] <= times * part["of_examples"]


def test_a_part_can_be_built_on_the_way(mix, datasets, tokenizer_file, capsys):
    build = {
        "sources": [str(datasets / "tree-c")], "length": 64, "tokenizer": str(tokenizer_file), "tail": "carry",
        "shard_tokens": 4096, "workers": 1,
    }  # fmt: skip
    parts = [{"build": build, "name": "web", "share": 0.5}, {"dataset": "a", "share": 0.5}]
    assert mix(parts, "--dry-run") == 0
    assert "random from" in " ".join(capsys.readouterr().out.split())
    assert not Path("out").exists()
    assert mix(parts) == 0
    assert run(["validate", "out"]) == 0
    assert all((Path(path) / "report.html").is_file() for path in ("out", "out/built/web"))
    assert manifest()["mixture"][0]["retriever"] == "random"
    assert mix(parts) == 0


def test_builds_of_one_mixture_share_a_tokenizer(mix, datasets):
    build = {"length": 64, "tail": "carry", "vocab-size": 400, "shard_tokens": 4096, "workers": 1}
    parts = [{"build": {**build, "sources": str(datasets / f"tree-{name}")}, "share": 0.5} for name in "ab"]
    assert mix(parts) == 0
    assert run(["validate", "out"]) == 0
    assert {part["name"] for part in manifest()["mixture"]} == {"build-0", "build-1"}


def test_nothing_is_built_for_an_output_that_cannot_be_used(mix, datasets, capsys):
    build = {"sources": [str(datasets / "tree-a")], "length": 64}
    Path("out").mkdir()
    (Path("out") / "notes.txt").write_text("mine")
    Path("file").write_text("")
    for output, message in (("out", "not empty (holds notes.txt)"), ("file", "file: not a directory")):
        assert mix([{"build": build, "share": 1.0}], output=output) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in Path("out").iterdir()] == ["notes.txt"]
    assert mix([{"build": build, "share": 0.5}, {"dataset": "a", "share": 0.5, "name": "x"}], "--dry-run") == 0
    build["length"] = 128
    assert mix([{"build": build, "share": 0.5}, {"dataset": "a", "share": 0.5}], output="fresh") == 2
    assert "a: examples of 64 tokens, build-0 has 128" in capsys.readouterr().err
    assert not Path("fresh").exists()


def test_run_again_it_is_the_same_and_after_a_kill_it_goes_on(mix):
    assert mix(PAPER, "--tokens", 64_000) == 0
    before = {path.name: path.read_bytes() for path in Path("out/data").iterdir()}
    stated = manifest()
    for lost in ("manifest.json", f"data/{stated['shards'][3]['file']}", "short"):
        if lost == "short":  # a file torn by a full disk, but not through its other name
            shard = Path("out/data") / stated["shards"][2]["file"]
            shard.unlink()
            shard.write_bytes(before[shard.name][:100])
        else:
            (Path("out") / lost).unlink()
        (Path("out/data") / ".tmp-1-x-train").write_bytes(b"half")
        (Path("out") / ".tmp-1-x-build.json").write_bytes(b"half")
        assert mix(PAPER, "--tokens", 64_000) == 0
        assert {path.name: path.read_bytes() for path in Path("out/data").iterdir()} == before
        assert manifest() == stated


def test_the_seed_orders_the_shards(mix):
    assert mix(PAPER, "--tokens", 64_000) == 0
    assert mix(PAPER, "--tokens", 64_000, "--seed", 1, output="other") == 0
    orders = [[shard["dataset"] for shard in manifest(output)["shards"]] for output in ("out", "other")]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert np.any(np.diff(orders[0]) < 0)  # not one dataset after the other


@pytest.fixture(scope="module")
def others(datasets, grow_tree, tokenizer_file, tmp_path_factory):
    """Datasets that do not go with the first: another length, tokenizer, join."""
    from splice.tokenizer import train_tokenizer

    tree = datasets / "tree-c"
    make(datasets, tree, tokenizer_file, "long", "--retriever", "random", "--length", 128)
    make(datasets, tree, tokenizer_file, "joined", "--retriever", "random", "--join", "eos")
    other = tmp_path_factory.mktemp("other")
    train_tokenizer([path.read_bytes() for path in sorted(tree.rglob("*.py"))[:20]], 500, other)
    make(datasets, tree, other, "worded", "--retriever", "random")
    return datasets


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"dataset": "a", "share": 0.5}, {"dataset": "b", "share": 0.4}], "the shares add up to 0.9 (0.5 + 0.4)"),
        ([{"dataset": "a", "share": 0.5}, {"dataset": "long", "share": 0.5}], "long: examples of 128 tokens, a has 64"),
        ([{"dataset": "a", "share": 0.5}, {"dataset": "worded", "share": 0.5}], "worded: made with another tokenizer"),
        ([{"dataset": "a", "share": 0.5}, {"dataset": "joined", "share": 0.5}], "joined by other special tokens"),
        ([{"dataset": "a", "share": 0.5}, {"dataset": "a", "share": 0.5}], "two datasets are called a"),
        ([{"dataset": "a", "share": 0.5}, {"share": 0.5}], "dataset 2 needs one of `dataset:`"),
        ([{"dataset": "a", "share": 1.5}], "datasets.0.share: Input should be less than or equal to 1"),
        ([{"dataset": "a", "share": 1, "shares": 1}], "datasets.0.shares: Extra inputs are not permitted"),
        ([{"dataset": "nowhere", "share": 1}], "nowhere: no such directory"),
        ([{"dataset": "tree-a", "share": 1}], "tree-a: no manifest.json (not a dataset of splice build)"),
        ([{"build": {"sources": ["gone"], "k": 0}, "share": 1}], "k: Input should be greater than or equal to 1"),
        ([{"build": {"sources": ["gone"], "output": "x"}, "share": 1}], "build of build-0: no output here"),
        ([{"build": {"k": 2}, "share": 1}], "mix.yaml, build of build-0: no source"),
        (
            [{"dataset": "a", "share": 0.5}, {"build": {"sources": ["tree-c"], "length": 32}, "share": 0.5}],
            "build-1: examples of 32 tokens, a has 64",
        ),
        (
            [
                {"dataset": "a", "share": 0.5},
                {"build": {"sources": ["tree-c"], "length": 64, "tokenizer": "worded/tokenizer"}, "share": 0.5},
            ],
            "build-1: made with another tokenizer",
        ),
        (
            [
                {"dataset": "a", "share": 0.5},
                {
                    "build": {"sources": ["tree-c"], "length": 64, "retriever": "dense", "encoder": "/no/such"},
                    "share": 0.5,
                },
            ],
            "encoder /no/such: no such directory",
        ),
        (
            [
                {"dataset": "a", "share": 0.5},
                {"build": {"sources": ["tree-c"], "length": 64, "join": "eos"}, "share": 0.5},
            ],
            "build-1: its documents are joined by other special tokens than those of a",
        ),
        ([{"dataset": "a", "name": "../up", "share": 1}], "datasets.0.name: String should match pattern"),
        ([], "datasets: List should have at least 1 item"),
    ],
)
def test_what_does_not_go_together_is_refused_before_any_work(mix, others, capsys, parts, message):
    parts = json.loads(json.dumps(parts).replace("worded/tokenizer", str(others / "worded" / "tokenizer")))
    assert mix(parts, "--tokens", 60_000) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()


def test_too_few_examples_for_the_shares(mix, capsys):
    assert mix([{"dataset": "a", "share": 0.97}, {"dataset": "b", "share": 0.03}], "--tokens", 2000) == 2
    assert "one example of 64 tokens is" in capsys.readouterr().err
    assert mix([{"dataset": "a", "share": 1.0}], "--tokens", 1) == 2
    assert "a: its share of 1 tokens is less than an example of 64" in capsys.readouterr().err


def test_an_output_that_holds_something_else(mix, datasets, capsys):
    Path("out").mkdir()
    (Path("out") / "notes.txt").write_text("mine")
    assert mix(PAPER) == 2
    assert "not empty (holds notes.txt)" in capsys.readouterr().err
    assert mix(PAPER, "--tokens", 64_000, output="mixed") == 0
    assert mix(PAPER, "--tokens", 32_000, output="mixed") == 2
    assert "holds another mixture" in capsys.readouterr().err
    shutil.copytree(datasets / "a", "dataset")
    assert mix(PAPER, output="dataset") == 2
    assert "dataset: holds a build" in capsys.readouterr().err
    shutil.copytree("mixed", "again")
    Path("again.yaml").write_text("datasets: [{dataset: again, share: 1}]")
    assert run(["mix", "again.yaml", "--output", "nested"]) == 2
    assert "again: is a mixture itself" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mix_270m", "mix_3b", "mix_7b", "mix_13b"])
def test_the_papers_mixtures_resolve(name):
    settings = resolve_mix(CONFIGS / f"{name}.yaml")
    shares = [0.5, 0.5] if name in ("mix_270m", "mix_3b") else [0.5, 0.25, 0.25]
    assert [part.share for part in settings.datasets] == shares
    assert run(["mix", str(CONFIGS / f"{name}.yaml"), "--output", "nowhere", "--dry-run"]) == 0


@pytest.mark.parametrize(("content", "message"), [("- a", "not a mixture"), ("a: [", "not valid YAML")])
def test_a_file_that_is_no_mixture(tmp_path, content, message):
    (tmp_path / "mix.yaml").write_text(content)
    with pytest.raises(SpliceError, match=message):
        resolve_mix(tmp_path / "mix.yaml")
    with pytest.raises(SpliceError, match="cannot be read"):
        resolve_mix(tmp_path / "gone.yaml")


class TestTampering:
    def change(self, **values: object) -> MixtureProof:
        stated = manifest()
        stated["mixture"][0] |= values
        (Path("out") / "manifest.json").write_text(json.dumps(stated))
        return MixtureProof(Path("out"))

    @pytest.fixture(autouse=True)
    def mixed(self, mix):
        assert mix(PAPER, "--tokens", 64_000) == 0

    def test_a_share_that_lies(self):
        proof = self.change(share=0.6)
        proof.examples()
        with pytest.raises(Failed, match=r"asked for 0\.6"):
            proof.shares()

    def test_tokens_that_lie(self):
        proof = self.change(tokens=manifest()["mixture"][0]["tokens"] + 1)
        proof.examples()
        with pytest.raises(Failed, match="manifest says"):
            proof.shares()

    def test_a_shard_twice(self):
        stated = manifest()
        shards = [s for s in stated["shards"] if s["dataset"] == 0]
        first, second = sorted(shards, key=lambda s: -s["examples"])[:2]
        shutil.copy(Path("out/data") / first["file"], Path("out/data") / (second["file"] + "x"))
        os.replace(Path("out/data") / (second["file"] + "x"), Path("out/data") / second["file"])
        with pytest.raises(Failed, match=r"more often|holds"):
            MixtureProof(Path("out")).examples()
        with pytest.raises(Failed, match="was changed"):
            MixtureProof(Path("out")).checksums()
