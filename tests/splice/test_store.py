"""PackedDataset: a map of examples that threads and processes share, and an order that any step resumes."""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest

from splice.errors import SpliceError
from splice.store import PackedDataset
from splice.store.shards import Example


@pytest.fixture(scope="module")
def dataset(built):
    return PackedDataset(built)


def same(a: Example, b: Example) -> bool:
    """Whether two examples are equal in every field; a root's score is NaN in both."""
    for field in fields(Example):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            if left.dtype != right.dtype or not np.array_equal(left, right, equal_nan=left.dtype.kind == "f"):
                return False
        elif left != right:
            return False
    return True


def take(batches, count):
    return list(itertools.islice(batches, count))


def test_a_map_of_examples(dataset):
    n = len(dataset)
    assert n == sum(shard["examples"] for shard in dataset.manifest["shards"]) > 40
    assert same(dataset[-1], dataset[n - 1])
    assert same(dataset[-n], dataset[0])
    assert not same(dataset[0], dataset[1])
    for index in (n, -n - 1, 10**9):
        with pytest.raises(IndexError, match=f"example {index} of a dataset of {n}"):
            dataset[index]
        with pytest.raises(IndexError):
            dataset.input_ids(index)


def test_types_and_shapes(dataset):
    for example in (dataset[0], dataset[len(dataset) // 2]):
        n = len(example.doc_ids)
        assert (example.input_ids.dtype, example.input_ids.shape) == (np.int32, (512,))
        assert (example.doc_offsets.dtype, example.doc_offsets.shape) == (np.int32, (n,))
        assert (example.doc_spans.dtype, example.doc_spans.shape) == (np.int32, (n, 2))
        assert (example.parents.dtype, example.scores.dtype) == (np.int32, np.float32)


def test_input_ids_are_those_of_the_example(dataset):
    for i in [*range(len(dataset)), -1]:
        np.testing.assert_array_equal(dataset.input_ids(i), dataset[i].input_ids)


def test_a_few_row_groups_are_kept_and_no_more(built):
    dataset = PackedDataset(built)
    assert len(dataset.shards) > 4
    first = [dataset.input_ids(i).copy() for i in range(len(dataset))]
    assert len(dataset._groups) <= 4
    for i in np.random.default_rng(0).permutation(len(dataset)).tolist():
        np.testing.assert_array_equal(dataset.input_ids(i), first[i])


def test_it_goes_to_another_process(dataset):
    again = pickle.loads(pickle.dumps(dataset))
    assert same(again[3], dataset[3])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert same(pool.submit(operator.getitem, dataset, 3).result(timeout=60), dataset[3])


def test_threads_share_it(built, dataset):
    """More threads than row groups that are kept, so that they drop each other's."""
    expected = [dataset.input_ids(i) for i in range(len(dataset))]
    shared = PackedDataset(built)

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(shared)).tolist()
        return all(np.array_equal(shared[i].input_ids, expected[i]) for i in order * 2)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(6)))


@pytest.fixture
def copy(built, tmp_path):
    shutil.copytree(built, tmp_path / "copy", ignore=shutil.ignore_patterns("work", "graph", "plan"))
    return tmp_path / "copy"


def test_a_missing_shard_is_named(copy):
    lost = sorted((copy / "data").iterdir())[1]
    lost.unlink()
    with pytest.raises(SpliceError, match=rf"copy: shard data/{lost.name} is missing \(1 in all\); build it again"):
        PackedDataset(copy)


def test_what_is_no_dataset_is_refused(copy, tmp_path):
    with pytest.raises(SpliceError, match="no such directory"):
        PackedDataset(tmp_path / "nowhere")
    with pytest.raises(SpliceError, match="not a dataset of splice build"):
        PackedDataset(tmp_path)
    (copy / "manifest.json").unlink()
    with pytest.raises(SpliceError, match="has not finished: run it again"):
        PackedDataset(copy)


# --- iterate


def test_every_step_resumes_in_the_middle_and_across_epochs(dataset):
    n = len(dataset)
    batch = 7
    assert n % batch  # so that epochs end inside a batch
    whole = take(dataset.iterate(seed=5, batch_size=batch), 3 * n // batch)
    assert whole[-1].epoch >= 2
    for step in (0, 1, n // batch, n // batch + 1, 2 * n // batch, len(whole) - 1):
        resumed = next(dataset.iterate(seed=5, step=step, batch_size=batch))
        assert (resumed.step, resumed.epoch) == (step, whole[step].epoch)
        np.testing.assert_array_equal(resumed.indices, whole[step].indices)
        np.testing.assert_array_equal(resumed.input_ids, whole[step].input_ids)


def test_a_batch_is_its_examples(dataset):
    batch = next(dataset.iterate(seed=1, step=3, batch_size=4))
    assert (batch.input_ids.dtype, batch.input_ids.shape) == (np.int32, (4, 512))
    for row, index in zip(batch.input_ids, batch.indices.tolist(), strict=True):
        np.testing.assert_array_equal(row, dataset[index].input_ids)


def test_every_example_once_an_epoch_and_epochs_differ(dataset):
    n = len(dataset)
    seen = np.concatenate([b.indices for b in take(dataset.iterate(seed=0), 2 * n)])
    first, second = seen[:n], seen[n:]
    np.testing.assert_array_equal(np.sort(first), np.arange(n))
    np.testing.assert_array_equal(np.sort(second), np.arange(n))
    assert (first != second).any()
    assert (first != np.arange(n)).any()
    assert (first != np.concatenate([b.indices for b in take(dataset.iterate(seed=1), n)])).any()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_global_batch_is_the_same_for_every_world_size(dataset, world_size):
    steps = len(dataset) // 8 + 3  # into the second epoch
    alone = take(dataset.iterate(seed=2, batch_size=8), steps)
    ranks = [take(dataset.iterate(2, 0, rank, world_size, 8), steps) for rank in range(world_size)]
    for step in range(steps):
        together = np.concatenate([batches[step].indices for batches in ranks])
        np.testing.assert_array_equal(together, alone[step].indices)
        assert all(len(batches[step].indices) == 8 // world_size for batches in ranks)


@pytest.mark.parametrize(
    "numbers",
    [
        {"batch_size": 3, "world_size": 2},
        {"batch_size": 0},
        {"batch_size": -2, "world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"world_size": 0},
        {"step": -1},
    ],
    ids=str,
)
def test_numbers_that_do_not_fit_are_refused_at_once(dataset, numbers):
    with pytest.raises(SpliceError, match="batch_size"):
        dataset.iterate(seed=0, **numbers)
