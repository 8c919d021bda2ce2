"""Ingest from the keys of what was read: duplicates, packs by repository, source, hash and cluster, and the tokenizer's sample."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from splice.packs import level_cuts, open_table
from splice.stages import assign, gather

DEFAULTS = {
    "dedup": "exact",
    "near_threshold": 0.8,
    "pack_by": "repository",
    "pack_documents": 4,
    "max_repo_bytes": 10**6,
}


class Read:
    """Read files as the stage `read` leaves them, of documents (source, id, repo, text)."""

    def __init__(self, directory: Path, files: list[list[tuple[str, str, str | None, bytes]]], digests=None) -> None:
        self.directory = directory
        self.documents = [document for file in files for document in file]
        self.units = [[file[0][0], len(file)] for file in files]
        self.digest = lambda text: (digests or {}).get(text) or xxhash.xxh3_128_digest(text)
        (directory / "read").mkdir(parents=True)
        for shard, file in enumerate(files):
            _, ids, repos, texts = zip(*file, strict=True)
            none = pa.nulls(len(ids), pa.string())
            main = {"id": pa.array(ids), "repo": pa.array(repos, pa.string()), "path": none, "domain": none}
            hashes = pa.array([self.digest(text) for text in texts], pa.binary(16))
            keys = {**dict(list(main.items())[:2]), "hash": hashes, "bytes": pa.array(map(len, texts), pa.uint32())}
            self.write(f"{shard:05d}.arrow", {**main, "text": pa.array(texts, pa.large_binary())}, 2)
            self.write(f"{shard:05d}.keys.arrow", keys, 3)

    def write(self, name: str, columns: dict[str, pa.Array], rows: int) -> None:
        """In batches of so many rows."""
        table = pa.table(columns)
        with pa.ipc.new_file(str(self.directory / "read" / name), table.schema) as out:
            out.write_table(table, max_chunksize=rows)

    def assign(self, **given) -> dict:
        self.receipt = assign.run({**DEFAULTS, "units": self.units, **given}, self.directory, 1)
        return self.receipt

    def packs(self) -> list[list[str]]:
        """The ids of each pack's documents."""
        found = []
        for pack, parts in enumerate(self.receipt["packs"]):
            found.append([])
            for part, (start, stop, size) in enumerate(parts):
                args = {"pack": pack, "part": part, "start": start, "stop": stop}
                assert gather.run(args, self.directory, 1)["documents"] == stop - start
                with pa.ipc.open_file(str(self.directory / "packs" / f"{pack:05d}-{part:04d}.arrow")) as file:
                    batch = file.get_batch(0)
                assert sum(map(len, batch.column("text").to_pylist())) == size
                found[-1] += zip(
                    *(batch.column(name).to_pylist() for name in ("source", "id", "repo", "text")), strict=True
                )
        documents = [document for pack in found for document in pack]
        assert set(documents) <= set(self.documents)  # every column belongs to its document
        return [[name for _, name, *_ in pack] for pack in found]


def files_of(n: int, per_file: int = 5, source: str = "s") -> list[list[tuple[str, str, str | None, bytes]]]:
    documents = [(source, f"{source}{i}", None, b"%s text %d" % (source.encode(), i)) for i in range(n)]
    return [documents[i : i + per_file] for i in range(0, n, per_file)]


def test_a_copy_is_refused_with_the_first_of_its_content(tmp_path):
    texts = [b"a", b"b", b"a", b"c", b"b", b"a", b"d"]
    files = [[("s" if i < 4 else "t", f"d{i}", None, text)] for i, text in enumerate(texts)]
    read = Read(tmp_path / "i", files)
    receipt = read.assign()
    assert (receipt["documents"], receipt["duplicates"], receipt["bytes"]) == (4, 3, 4)
    assert read.packs() == [["d0", "d1", "d3", "d6"]]
    assert pq.read_table(tmp_path / "i" / "assign" / "refused.parquet").to_pylist() == [
        {"id": "d2", "source": "s", "reason": "duplicate", "duplicate_of": "s:d0"},
        {"id": "d4", "source": "t", "reason": "duplicate", "duplicate_of": "s:d1"},
        {"id": "d5", "source": "t", "reason": "duplicate", "duplicate_of": "s:d0"},
    ]


def test_half_a_hash_in_common_makes_no_copy(tmp_path):
    """The documents' hashes agree in one half or in both, and copies do not lie beside each other by the first half alone."""
    digests = {
        b"a": b"1" * 8 + b"x" * 8,
        b"b": b"1" * 8 + b"y" * 8,
        b"c": b"2" * 8 + b"x" * 8,
        b"d": b"1" * 8 + b"a" * 8,
    }
    texts = [b"b", b"a", b"d", b"b", b"c", b"a", b"c", b"b"]
    read = Read(tmp_path / "i", [[("s", f"d{i}", None, text) for i, text in enumerate(texts)]], digests)
    assert read.assign()["duplicates"] == 4
    refused = pq.read_table(tmp_path / "i" / "assign" / "refused.parquet").to_pylist()
    assert [(row["id"], row["duplicate_of"]) for row in refused] == [
        ("d3", "s:d0"), ("d5", "s:d1"), ("d6", "s:d4"), ("d7", "s:d0"),
    ]  # fmt: skip


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.sampled_from([1, 2, 16]))
def test_copies_are_those_that_a_dictionary_finds(texts, ranges):
    hashes = np.array([[xxhash.xxh3_64_intdigest(b"%d" % t) >> (0 if t % 2 else 60), t // 3] for t in texts], np.uint64)
    first: dict[tuple[int, int], int] = {}
    expected = {i: f for i, h in enumerate(map(tuple, hashes.tolist())) if (f := first.setdefault(h, i)) != i}
    before, assign.HASH_RANGES = assign.HASH_RANGES, ranges
    try:
        copies, originals = assign._same_hash(hashes)
    finally:
        assign.HASH_RANGES = before
    assert dict(zip(copies.tolist(), originals.tolist(), strict=True)) == expected


def test_what_filters_refused_comes_first_and_in_the_order_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(assign, "REFUSED_ROWS", 3)
    read = Read(tmp_path / "i", [[("s", f"d{i}{j}", None, b"same") for j in range(3)] for i in range(3)])
    for shard in (0, 2):
        rows = {"id": ["x", "y"], "reason": ["too_short", "contaminated"], "by": [None, "eval.jsonl"]}
        read.write(f"{shard:05d}.refused.arrow", {k: pa.array(v, pa.string()) for k, v in rows.items()}, 2)
    assert read.assign()["duplicates"] == 8
    file = pq.ParquetFile(tmp_path / "i" / "assign" / "refused.parquet")
    rows = file.read().to_pylist()
    assert file.num_row_groups > 1
    assert [row["id"] for row in rows] == ["x", "y", "x", "y", "d01", "d02", "d10", "d11", "d12", "d20", "d21", "d22"]
    assert [row["duplicate_of"] for row in rows] == [None, "eval.jsonl"] * 2 + ["s:d00"] * 8


@pytest.mark.parametrize("by", ["repository", "source", "hash", "cluster"])
def test_every_document_is_in_one_pack_and_none_is_too_full(tmp_path, by):
    read = Read(tmp_path / "i", [*files_of(23), *files_of(9, source="t")])
    for shard, (_, n) in enumerate(read.units):
        np.save(tmp_path / "i" / "read" / f"{shard:05d}.clusters.npy", np.arange(n, dtype=np.uint16) * 7 % 3)
    read.assign(pack_by=by, pack_documents=7)
    packs = read.packs()
    assert sorted(name for pack in packs for name in pack) == sorted(name for _, name, *_ in read.documents)
    sizes = list(map(len, packs))
    assert max(sizes) <= 7
    assert len(sizes) == (6 if by == "source" else 5)
    number = {name: i for i, (_, name, *_) in enumerate(read.documents)}
    assert all(number[a] < number[b] for pack in packs for a, b in pairwise(pack))  # in input order


def test_a_pack_by_source_is_of_one_source(tmp_path):
    read = Read(tmp_path / "i", [*files_of(11), *files_of(3, source="t"), *files_of(8, source="u")])
    read.assign(pack_by="source", pack_documents=4)
    packs = read.packs()
    assert [{name[0] for name in pack} for pack in packs] == [{"s"}] * 3 + [{"t"}] + [{"u"}] * 2
    assert [len(pack) for pack in packs] == [3, 4, 4, 3, 4, 4]
    assert [name for pack in packs for name in pack] == [name for _, name, *_ in read.documents]


def test_a_source_of_nothing_but_copies_has_no_pack(tmp_path):
    copies = [[("t", f"copy{i}", None, text) for i, (_, _, _, text) in enumerate(files_of(4)[0])]]
    read = Read(tmp_path / "i", [*files_of(9), *copies, *files_of(2, source="u")])
    read.assign(pack_by="source", pack_documents=9)
    assert [len(pack) for pack in read.packs()] == [9, 2]


def test_packs_by_hash_hold_the_same_documents_in_any_order(tmp_path):
    documents = [document for file in files_of(40) for document in file]
    found = []
    for turn, order in enumerate((documents, documents[::-1], documents[17:] + documents[:17])):
        read = Read(tmp_path / str(turn), [order[i : i + 6] for i in range(0, 40, 6)])
        read.assign(pack_by="hash", pack_documents=10)
        found.append([set(pack) for pack in read.packs()])
    assert found[0] == found[1] == found[2]
    names = [[f"s{i}" for i in range(a, a + 10)] for a in range(0, 40, 10)]
    assert not any(set(run) in found[0] for run in names)  # random, and not runs of the input


def test_clusters_are_kept_together_in_the_order_of_their_numbers(tmp_path):
    read = Read(tmp_path / "i", files_of(20, per_file=10))
    cluster = np.array([3, 0, 1, 2, 0, 1, 3, 0, 2, 1, 1, 0, 3, 3, 2, 2, 0, 1, 2, 3], np.uint16)
    for shard in range(2):
        np.save(tmp_path / "i" / "read" / f"{shard:05d}.clusters.npy", cluster[10 * shard :][:10])
    read.assign(pack_by="cluster", pack_documents=5)
    assert read.packs() == [[f"s{i}" for i in np.flatnonzero(cluster == c)] for c in range(4)]
    read.assign(pack_by="cluster", pack_documents=10)
    assert read.packs() == [[f"s{i}" for i in np.flatnonzero(cluster // 2 == c)] for c in range(2)]


@pytest.mark.parametrize("by", ["repository", "source", "hash", "cluster"])
def test_one_pack_is_the_same_by_whatever_it_is_made(tmp_path, by):
    """No clusters are needed where there is one pack."""
    read = Read(tmp_path / "i", files_of(12))
    read.assign(pack_by=by, pack_documents=12)
    assert read.packs() == [[f"s{i}" for i in range(12)]]


def test_repositories_of_one_name_in_two_sources_are_two(tmp_path):
    files = [[(source, f"{source}{i}", "same", b"%s%d" % (source.encode(), i)) for i in range(4)] for source in "st"]
    read = Read(tmp_path / "i", files)
    read.assign(pack_documents=5)
    assert read.packs() == [[f"s{i}" for i in range(4)], [f"t{i}" for i in range(4)]]


@pytest.mark.parametrize("by", ["repository", "hash"])
@pytest.mark.parametrize("sample_bytes", [1, 60, 10**6])
def test_the_sample_is_of_the_smallest_hashes_whatever_the_packs(tmp_path, monkeypatch, by, sample_bytes):
    monkeypatch.setattr(assign, "SAMPLE_BYTES", sample_bytes)
    monkeypatch.setattr(assign, "PART_BYTES", 25)
    read = Read(tmp_path / "i", [*files_of(40), [("s", "copy", None, b"s text 3")]])
    read.assign(pack_by=by, pack_documents=9)
    assert max(map(len, read.receipt["packs"])) > 1
    read.packs()
    by_hash = sorted(
        {text for *_, text in read.documents}, key=lambda text: int.from_bytes(read.digest(text)[:8], "little")
    )
    expected, held = [], 0
    while held < sample_bytes and by_hash:
        expected.append(by_hash.pop(0))
        held += len(expected[-1])
    assert gather.read_sample(tmp_path / "i") == expected


def test_the_input_has_one_hash_whatever_its_files(tmp_path):
    documents = [document for file in files_of(17) for document in file]
    digests = [
        Read(tmp_path / str(n), [documents[i : i + n] for i in range(0, 17, n)]).assign()["hash"] for n in (17, 5, 1)
    ]
    assert len(set(digests)) == 1
    content = b"".join(xxhash.xxh3_128_digest(text) for *_, text in documents)
    assert digests[0] == xxhash.xxh3_128_hexdigest(content)
    other = Read(tmp_path / "other", [documents[::-1]]).assign()["hash"]
    assert other != digests[0]


@given(st.lists(st.integers(0, 60), max_size=8), st.integers(1, 25))
def test_groups_are_cut_into_as_few_packs_as_hold_them_of_equal_size(groups, most):
    edges = level_cuts(groups, most)
    sizes = np.diff(edges).tolist()
    assert edges[0] == 0
    assert edges[-1] == sum(groups)
    for documents in groups:
        mine, sizes = sizes[: -(-documents // most)], sizes[-(-documents // most) :]
        assert sum(mine) == documents
        assert max(mine, default=0) <= most
        assert max(mine, default=0) - min(mine, default=0) <= 1
    assert sizes == []


def test_no_text_is_opened(tmp_path):
    read = Read(tmp_path / "i", files_of(30))
    for path in (tmp_path / "i" / "read").glob("0000[0-9].arrow"):
        path.unlink()
    receipt = read.assign(pack_by="hash", pack_documents=10)
    assert receipt["documents"] == 30
    assert open_table(tmp_path / "i" / "assign" / "00002.arrow").num_rows == 10
