"""Whole builds with packs by repository, source, hash and cluster."""

from __future__ import annotations

import json
import re
from collections import Counter

import pyarrow.parquet as pq
import pytest

TOPICS = 9  # of the fixture `tree`: file n is about topic n % 9


def packs_of(output) -> list[list[str]]:
    """The ids of each pack's documents."""
    packs = range(len(json.loads((output / "manifest.json").read_text())["packs"]))
    parts = [sorted((output / "documents").glob(f"{pack:05d}-*")) for pack in packs]
    return [[name for part in paths for name in pq.read_table(part).column("id").to_pylist()] for paths in parts]


def together(packs: list[list[str]]) -> float:
    """The share of pairs of one topic that are in one pack."""
    topics = [Counter(int(re.search(r"f(\d+)\.py", name)[1]) % TOPICS for name in pack) for pack in packs]
    all_ = sum(topics, Counter())
    return sum(n * (n - 1) for pack in topics for n in pack.values()) / sum(n * (n - 1) for n in all_.values())


@pytest.fixture(scope="module")
def build(cli, tree, tokenizer_file, tmp_path_factory):
    """`build("cluster", workers=1)`: the finished dataset, of packs of 60 documents."""
    done: dict[tuple, object] = {}

    def run(by: str, **more: object):
        key = (by, *more.items())
        if key not in done:
            output = done[key] = tmp_path_factory.mktemp("packs") / "out"
            given = {"length": 512, "shard_tokens": 8192, "workers": 2, "tokenizer": tokenizer_file, "pack_documents": 60, **more}  # fmt: skip
            options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
            finished = cli("build", tree, "--output", output, "--pack-by", by, *options)
            assert finished.returncode == 0, finished.stderr
        return done[key]

    return run


@pytest.mark.parametrize("by", ["repository", "source", "hash", "cluster"])
def test_packs_are_of_their_size_and_the_dataset_is_proven(build, cli, by):
    packs = packs_of(build(by))
    assert sum(map(len, packs)) == 240
    assert max(map(len, packs)) <= 60
    assert len(packs) <= 6
    proof = cli("validate", build(by))
    assert proof.returncode == 0, proof.stdout


def test_documents_of_a_topic_are_together_in_packs_by_cluster_alone(build):
    """A repository of the tree has a third of the topics, a pack by hash has all."""
    assert together(packs_of(build("cluster"))) > 0.8
    assert together(packs_of(build("repository"))) < 0.7
    assert together(packs_of(build("hash"))) < 0.35


def test_clusters_are_the_same_for_any_number_of_workers(build, same_dataset):
    same_dataset(build("cluster", workers=1), build("cluster"))


def test_clusters_cost_nothing_where_there_is_one_pack(build, built):
    """They are not made, and the documents are those of any other build of one pack."""
    output = build("cluster", pack_documents=240)
    stages = json.loads((output / "manifest.json").read_text())["run"]["stages"]
    assert not {"centroids", "cluster"} & stages.keys()
    assert packs_of(output) == packs_of(built)
    stages = json.loads((build("cluster") / "manifest.json").read_text())["run"]["stages"]
    assert {"centroids", "cluster"} <= stages.keys()


def test_what_was_read_is_removed_and_what_was_clustered_too(build):
    (ingest,) = (build("cluster") / "work").glob("ingest-*")
    assert {path.suffix for path in (ingest / "read").iterdir()} <= {".jsonl"}


def test_a_shard_opens_each_pack_once(build, monkeypatch, tmp_path):
    """However its examples are shuffled."""
    from splice import packs
    from splice.stages import write

    output = build("hash", pack_documents=10)
    manifest = json.loads((output / "manifest.json").read_text())
    directories = {name: str(next((output / "work").glob(f"{name}-*"))) for name in ("ingest", "tokens", "walk")}
    args = {
        **directories, "output": str(tmp_path), "seed": 0, "length": 512, "retriever": "bm25", "file": "shard.parquet",
        "laid": False,
        "start": 0, "stop": manifest["shards"][0]["examples"], **manifest["join"], "pad_id": manifest["tokenizer"]["pad_id"],
    }  # fmt: skip
    opened: list[str] = []
    open_batch = packs.open_batch
    monkeypatch.setattr(packs, "open_batch", lambda path: (opened.append(str(path)), open_batch(path))[1])
    receipt = write.run(args, tmp_path, 1)
    assert receipt["sha256"] == manifest["shards"][0]["sha256"]
    assert len(manifest["packs"]) > 20
    assert len(opened) == len(set(opened)) > 20
