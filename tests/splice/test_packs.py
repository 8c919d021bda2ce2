"""Packs: which documents go together, and how a pack is cut into parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splice.errors import SpliceError
from splice.packs import _split, assign, binary_arrays, open_batch, open_pack, open_table, parts_of

documents = st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 100)), min_size=1, max_size=120)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    unit, size = zip(*rows, strict=True)
    return np.array(unit, np.int64), np.array(size, np.int64)


@given(documents, st.integers(1, 40), st.integers(1, 600))
def test_every_document_has_a_pack_and_none_is_too_full(rows, most, max_bytes):
    unit, size = columns(rows)
    pack = assign(unit, size, most, max_bytes)
    assert pack.shape == unit.shape
    counts = np.bincount(pack)
    assert counts.max() <= most
    assert (counts > 0).all()  # numbered without a gap
    np.testing.assert_array_equal(assign(unit, size, most, max_bytes), pack)


@given(documents, st.integers(1, 40), st.integers(1, 600))
def test_units_stay_together_unless_over_a_bound(rows, most, max_bytes):
    unit, size = columns(rows)
    pack = assign(unit, size, most, max_bytes)
    for u in set(unit.tolist()) - {-1}:
        mine = unit == u
        if mine.sum() <= most and size[mine].sum() <= max_bytes:
            assert len(set(pack[mine].tolist())) == 1


@given(documents, st.integers(1, 40), st.integers(1, 600))
def test_pieces_of_a_unit_are_runs_of_its_documents_within_the_bounds(rows, most, max_bytes):
    unit, size = columns(rows)
    piece = _split(unit, size, most, max_bytes)
    pack = assign(unit, size, most, max_bytes)
    np.testing.assert_array_equal(piece < 0, unit < 0)
    assert sorted(set(piece[piece >= 0].tolist())) == list(range(piece.max() + 1))
    for u in set(unit.tolist()) - {-1}:
        assert (np.diff(piece[unit == u]) >= 0).all()
    for p in range(piece.max() + 1):
        mine = np.flatnonzero(piece == p)
        assert len(set(unit[mine].tolist())) == 1
        assert len(set(pack[mine].tolist())) == 1
        assert len(mine) <= most
        assert size[mine].sum() <= max_bytes or len(mine) == 1
        # As few pieces as filling them in order gives: the next document would have passed a bound.
        after = np.flatnonzero((unit == unit[mine[0]]) & (np.arange(len(unit)) > mine[-1]))
        if len(after):
            assert len(mine) == most or size[mine].sum() + size[after[0]] > max_bytes


def test_a_unit_over_the_bytes_is_split_in_order():
    size = np.array([10, 10, 15, 40, 5, 5])
    assert _split(np.zeros(6, np.int64), size, 100, 25).tolist() == [0, 0, 1, 2, 3, 3]


@given(st.lists(st.integers(1, 4), min_size=100, max_size=200), st.integers(40, 90))
def test_packs_of_many_small_units_are_balanced(units, most):
    unit = np.repeat(np.arange(len(units)), units)
    counts = np.bincount(assign(unit, np.ones(len(unit), np.int64), most, 10**6))
    assert counts.max() - counts.min() <= max(units)
    assert counts.max() <= 2 * counts.min()


def test_documents_without_a_unit_level_the_packs_out():
    unit = np.array([0] * 9 + [1] * 3 + [-1] * 8)
    pack = assign(unit, np.ones(20, np.int64), 10, 10**6)
    assert np.bincount(pack).tolist() == [10, 10]
    assert (np.diff(pack[unit < 0]) >= 0).all()  # consecutive ones together


def test_units_that_do_not_fit_the_fewest_packs_get_one_more():
    pack = assign(np.repeat([0, 1, 2], 6), np.ones(18, np.int64), 9, 10**6)  # 2 packs of 9 hold no two units of 6 each
    assert np.bincount(pack).tolist() == [6, 6, 6]


def test_no_document():
    assert assign(np.zeros(0, np.int64), np.zeros(0, np.int64), 5, 5).tolist() == []


@given(st.lists(st.integers(0, 50), max_size=80), st.integers(1, 120))
def test_parts_cover_all_documents_in_order_and_are_of_about_the_size(size, part_bytes):
    parts = parts_of(np.array(size, np.int64), part_bytes)
    assert [d for a, b in parts for d in range(a, b)] == list(range(len(size)))
    for a, b in parts:
        assert a < b
        assert sum(size[a + 1 : b]) < part_bytes  # beside its first document
    for (a, b), (c, d) in pairwise(parts):
        assert sum(size[a:b]) + sum(size[c:d]) >= part_bytes / 2 or max(size[a:d]) >= part_bytes / 4


def test_parts_of_nothing_and_of_nothing_but_empty_documents():
    assert parts_of([], 10) == []
    assert parts_of([0, 0, 0], 10) == [(0, 3)]


def test_binary_arrays_of_a_slice():
    import pyarrow as pa

    texts = [b"one", b"", b"three", "vier ü".encode()]
    data, offsets = binary_arrays(pa.array(texts, pa.large_binary()).slice(1, 3))
    assert [data[a:b].tobytes() for a, b in pairwise(offsets)] == texts[1:]


def test_a_pack_is_numbered_through_its_parts(built):
    import pyarrow.parquet as pq

    ingest, tokens = (str(next((built / "work").glob(f"{stage}-*"))) for stage in ("ingest", "tokens"))
    pack = open_pack(ingest, 0, 1, tokens)
    told = pq.read_table(built / "documents" / "00000-0000.parquet")
    assert pack.n_documents == told.num_rows
    assert pack.strings("id") == told.column("id").to_pylist()
    assert pack.token_counts.tolist() == told.column("tokens").to_pylist()
    assert [len(data) for data, _ in pack.texts] == [sum(told.column("bytes").to_pylist())]


@pytest.mark.parametrize("content", [None, b"", b"ARROW1 and then nothing", b"x" * 5000])
@pytest.mark.parametrize("opened", [open_table, open_batch])
def test_a_damaged_file_is_named(tmp_path, opened, content):
    path = tmp_path / "p.arrow"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpliceError, match=rf"p\.arrow: missing or damaged .* remove {tmp_path.parent} and build again"):
        opened(path)
