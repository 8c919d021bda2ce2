"""Shards on disk: row groups, encodings and compression as packing.md measured them, and examples that come back."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splice.errors import SpliceError
from splice.store.records import read_records, starts_path, write_records
from splice.store.shards import Example, file_sha256, read_rows, schema, write_shard


def make_example(number: int, length: int, documents: int, padding: int = 0) -> Example:
    """Random ids and `documents` documents that share the example, written whole between BOS and EOS."""
    rng = np.random.default_rng(number)
    offsets = np.sort(rng.choice(np.arange(1, length - padding), max(documents - 1, 0), replace=False))
    offsets = np.concatenate([[0], offsets]).astype(np.int32)[:documents]
    ends = np.append(offsets[1:], length - padding)[:documents]
    scores = rng.random(documents, np.float32)
    scores[:1] = np.nan
    return Example(
        number=number,
        pack=number % 3,
        input_ids=rng.integers(0, 32_000, length, dtype=np.int32),
        padding=padding,
        doc_ids=[f"dir/f{i}.py" for i in range(documents)],
        sources=[("code", "web")[i % 2] for i in range(documents)],
        doc_offsets=offsets,
        doc_spans=np.stack([np.zeros_like(offsets), np.maximum(ends - offsets - 2, 0)], axis=1).astype(np.int32),
        parents=np.arange(-1, documents - 1, dtype=np.int32),
        scores=scores,
    )


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("shard") / "train.parquet"
    write_shard(path, (make_example(i, 1024, 4) for i in range(600)), 1024, "bm25")
    return pq.ParquetFile(path)


def columns(group) -> dict:
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


def test_row_groups_hold_256k_tokens(shard):
    rows = [shard.metadata.row_group(g).num_rows for g in range(shard.num_row_groups)]
    assert rows == [256, 256, 88]


def test_ids_are_split_by_byte_and_compressed_without_a_dictionary(shard):
    for g in range(shard.num_row_groups):
        ids = columns(shard.metadata.row_group(g))["input_ids.list.element"]
        assert "BYTE_STREAM_SPLIT" in ids.encodings
        assert not {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(ids.encodings)
        assert not ids.has_dictionary_page
        assert ids.compression == "ZSTD"
        assert ids.physical_type == "INT32"
        # 15 random bits in 32: the two upper bytes of each id cost next to nothing.
        assert ids.total_compressed_size < 0.52 * 4 * 1024 * shard.metadata.row_group(g).num_rows


def test_repeated_names_have_a_dictionary(shard):
    described = columns(shard.metadata.row_group(0))
    assert described["doc_ids.list.element"].has_dictionary_page
    assert described["sources.list.element"].has_dictionary_page
    assert {c.compression for c in described.values()} == {"ZSTD"}


@pytest.mark.parametrize(("length", "rows"), [(2**18, [1, 1, 1]), (2**19, [1, 1, 1]), (2**17, [2, 1])])
def test_long_examples_have_row_groups_of_their_own(tmp_path, length, rows):
    write_shard(tmp_path / "s.parquet", (make_example(i, length, 2) for i in range(3)), length, "bm25")
    metadata = pq.ParquetFile(tmp_path / "s.parquet").metadata
    assert [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)] == rows


def test_a_shard_of_no_example(tmp_path):
    totals = write_shard(tmp_path / "s.parquet", iter(()), 64, "bm25")
    assert totals == {"examples": 0, "padding": 0, "by_source": {}}
    table = pq.read_table(tmp_path / "s.parquet")
    assert table.num_rows == 0
    assert table.schema.equals(schema())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 7, 400]), st.integers(0, 500)), min_size=1, max_size=5))
def test_examples_come_back_as_they_were_and_are_counted(tmp_path_factory, shapes):
    """From an example that is all padding to one of 400 documents."""
    path = tmp_path_factory.mktemp("s") / "s.parquet"
    length = 1000
    examples = [
        make_example(i, length, documents, padding if documents else length)
        for i, (documents, padding) in enumerate(shapes)
    ]
    totals = write_shard(path, examples, length, "bm25")
    assert totals["examples"] == len(examples)
    assert totals["padding"] == sum(e.padding for e in examples)
    held = sum(c["written_tokens"] + c["separators"] for c in totals["by_source"].values())
    assert held + totals["padding"] == length * len(examples)
    table = pq.read_table(path)
    assert set(table.column("retriever").to_pylist()) == {"bm25"}
    for wrote, read in zip(examples, read_rows(table, range(table.num_rows)), strict=True):
        for name in ("number", "pack", "padding", "doc_ids", "sources"):
            assert getattr(read, name) == getattr(wrote, name)
        for name in ("input_ids", "doc_offsets", "doc_spans", "parents", "scores"):
            np.testing.assert_array_equal(getattr(read, name), getattr(wrote, name))
            assert getattr(read, name).dtype == getattr(wrote, name).dtype


def test_by_source_counts(tmp_path):
    example = make_example(1, 100, 2, padding=10)
    totals = write_shard(tmp_path / "s.parquet", [example], 100, "random")
    cut = int(example.doc_offsets[1])
    assert totals["by_source"] == {
        "code": {"written_tokens": cut - 2, "separators": 2},
        "web": {"written_tokens": 90 - cut - 2, "separators": 2},
    }


def test_the_same_examples_give_the_same_bytes(tmp_path):
    for name in "ab":
        write_shard(tmp_path / name, (make_example(i, 256, 3) for i in range(40)), 256, "bm25")
    assert file_sha256(tmp_path / "a") == file_sha256(tmp_path / "b")


def test_a_real_dataset_is_so_encoded(built):
    for path in (built / "data").iterdir():
        metadata = pq.ParquetFile(path).metadata
        assert metadata.num_row_groups == 1  # 8192 tokens
        ids = columns(metadata.row_group(0))["input_ids.list.element"]
        assert "BYTE_STREAM_SPLIT" in ids.encodings
        assert not ids.has_dictionary_page


# ------------------------------------------------------------------------------------- examples laid out one by one

LAID_LENGTH = 500


def lay_out(path, examples, narrow=True):
    starts = write_records(path, iter(examples), LAID_LENGTH, "bm25", narrow)
    starts.tofile(starts_path(path))
    return starts


def same(a, b) -> bool:
    for name in ("number", "pack", "padding", "doc_ids", "sources"):
        assert getattr(a, name) == getattr(b, name)
    for name in ("input_ids", "doc_offsets", "doc_spans", "parents", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    return True


@pytest.mark.parametrize("narrow", [True, False])
def test_examples_of_several_files_come_back_in_the_order_asked_for(tmp_path, narrow):
    files = [[make_example(10 * f + i, LAID_LENGTH, 1 + (3 * i + f) % 7, i) for i in range(9)] for f in range(3)]
    for f, examples in enumerate(files):
        lay_out(tmp_path / str(f), examples, narrow)
    rng = np.random.default_rng(0)
    wanted = [(int(rng.integers(3)), int(rng.integers(9))) for _ in range(60)]
    found = read_records([(tmp_path / str(f), i) for f, i in wanted], narrow)
    assert all(same(example, files[f][i]) for example, (f, i) in zip(found, wanted, strict=True))
    assert read_records([], narrow) == []


def test_narrow_tokens_take_two_bytes_and_one_too_large_is_an_error(tmp_path):
    examples = [make_example(i, LAID_LENGTH, 2) for i in range(3)]
    assert (
        lay_out(tmp_path / "wide", examples, False)[-1] - lay_out(tmp_path / "narrow", examples)[-1]
        == 3 * 2 * LAID_LENGTH
    )
    examples[2].input_ids[7] = 2**16
    with pytest.raises(ValueError, match="65536"):
        lay_out(tmp_path / "too-narrow", examples)
    lay_out(tmp_path / "wide", examples, False)
    assert same(*read_records([(tmp_path / "wide", 2)], False), examples[2])


def test_a_torn_file_is_named(tmp_path):
    path = tmp_path / "00003"
    starts = lay_out(path, [make_example(i, LAID_LENGTH, 2) for i in range(3)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-64])
    read_records([(path, 1)], True)
    with pytest.raises(SpliceError, match=r"00003: damaged \(it ends before byte \d+\); remove"):
        read_records([(path, 2)], True)
    path.write_bytes(whole[: starts[1]] + bytes(int(starts[2] - starts[1])) + whole[starts[2] :])
    with pytest.raises(SpliceError, match="00003: damaged"):
        read_records([(path, 1)], True)
    starts_path(path).write_bytes(starts_path(path).read_bytes()[:-8])
    with pytest.raises(SpliceError, match=r"00003\.starts: damaged"):
        read_records([(path, 2)], True)
