"""Rows and micro-batches: what is cut, shifted, left out of the loss, and who reads what."""

import shutil
from itertools import islice

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from splice.errors import SpliceError
from splice.store import Batch, PackedDataset, Rows
from splice.train.data import Policy, feed, prepare
from splice.train.loss import IGNORED
from splice.train.parallel import World

CPU = torch.device("cpu")


def batch_of(ids, offsets, padding):
    ids = np.asarray(ids, np.int32)
    return Batch(0, 0, np.arange(len(ids)), ids, [np.array(o, np.int32) for o in offsets], np.array(padding, np.int32))


def test_targets_are_the_next_tokens_and_padding_has_none():
    step = prepare(batch_of([[5, 6, 7, 8, 9, 3, 3, 3]], [[0, 2]], [3]), 1, Policy(), World(CPU))
    micro = step.micro[0]
    assert micro.ids.tolist() == [[5, 6, 7, 8, 9, 3, 3, 3]]
    assert micro.targets.tolist() == [[6, 7, 8, 9, IGNORED, IGNORED, IGNORED, IGNORED]]
    assert micro.documents is None
    assert step.predicted == 4


def test_the_last_token_of_a_full_row_has_no_target():
    step = prepare(batch_of([[5, 6, 7, 8]], [[0]], [0]), 1, Policy(), World(CPU))
    assert step.micro[0].targets.tolist() == [[6, 7, 8, IGNORED]]


@pytest.mark.parametrize("policy", [Policy(skip_starts=True), Policy(document_mask=True)])
def test_first_tokens_of_documents_are_out_of_the_loss_where_asked(policy):
    step = prepare(batch_of([[5, 6, 7, 8, 9, 3]], [[0, 2, 4]], [1]), 1, policy, World(CPU))
    assert step.micro[0].targets.tolist() == [[6, IGNORED, 8, IGNORED, IGNORED, IGNORED]]
    assert step.predicted == 2


def test_documents_are_numbered_along_the_row_and_padding_is_one_of_its_own():
    step = prepare(batch_of([[5, 6, 7, 8, 9, 3]], [[0, 2, 4]], [1]), 1, Policy(document_mask=True), World(CPU))
    assert step.micro[0].documents.tolist() == [[0, 0, 1, 1, 2, 3]]


def test_a_row_of_padding_alone_has_no_loss():
    step = prepare(batch_of([[3, 3, 3, 3]], [[0]], [4]), 1, Policy(document_mask=True), World(CPU))
    assert step.predicted == 0
    assert (step.micro[0].targets == IGNORED).all()


def test_context_ranks_share_rows_and_targets_cross_their_border():
    whole = batch_of([[1, 2, 3, 4, 5, 6, 7, 8]], [[0, 3]], [0])
    left, right = (prepare(whole, 1, Policy(document_mask=True), World(CPU, r, 2, 2)) for r in (0, 1))
    assert left.micro[0].ids.tolist() == [[1, 2, 3, 4]]
    assert left.micro[0].targets.tolist() == [[2, 3, IGNORED, 5]]  # 4 opens a document; 5 is the other rank's
    assert right.micro[0].targets.tolist() == [[6, 7, 8, IGNORED]]
    assert left.micro[0].documents.shape == right.micro[0].documents.shape == (1, 8)  # attention sees whole rows
    assert (left.predicted, right.predicted) == (3, 3)


@pytest.mark.parametrize("length", [512, 256, 64])
def test_cut_rows_are_the_stretches_of_their_examples(built, length):
    dataset = PackedDataset(built)
    rows = Rows(dataset, length)
    assert len(rows) == len(dataset) * (512 // length)
    for index in range(0, len(rows), 7):
        batch = rows.read(np.array([index]))
        example, part = dataset[rows.example_of(index)], index % (512 // length)
        begin, end = part * length, (part + 1) * length
        np.testing.assert_array_equal(batch.input_ids[0], example.input_ids[begin:end])
        # token by token: which document each belongs to, padding apart
        filled = 512 - example.padding
        numbers = np.searchsorted(example.doc_offsets, np.arange(512), side="right")[begin:end]
        mine = np.searchsorted(batch.doc_offsets[0], np.arange(length), side="right")
        real = np.arange(begin, end) < filled
        np.testing.assert_array_equal(np.diff(numbers[real]), np.diff(mine[real]))
        assert batch.padding[0] == (~real).sum()


def test_rows_of_some_examples_leave_the_others_out(built):
    dataset = PackedDataset(built)
    rows = Rows(dataset, 128, range(2, 5))
    assert len(rows) == 12
    assert {rows.example_of(i) for i in range(12)} == {2, 3, 4}
    seen = np.sort(np.concatenate([b.indices for b in islice(rows.iterate(seed=3, batch_size=4), 3)]))
    np.testing.assert_array_equal(seen, np.arange(12))  # an epoch holds each row once


def test_a_length_that_does_not_divide_is_refused(built):
    with pytest.raises(SpliceError, match=r"examples of 512 tokens cannot be cut into rows of 100"):
        Rows(PackedDataset(built), 100)


def test_a_step_holds_the_same_micro_batches_at_any_world_size(built):
    rows = Rows(PackedDataset(built), 128)

    def steps(world_size):
        worlds = [World(CPU, rank, world_size) for rank in range(world_size)]
        feeds = [list(feed(rows, 1, 2, 5, 8, 2, Policy(), world)) for world in worlds]
        return [[m.rows.tolist() for step in together for m in step.micro] for together in zip(*feeds, strict=True)]

    assert steps(1) == steps(2) == steps(4)


def test_a_feed_goes_on_where_it_is_told_to(built):
    rows = Rows(PackedDataset(built), 128)
    everything = [step.micro[0].rows.tolist() for step in feed(rows, 1, 0, 40, 4, 4, Policy(), World(CPU))]
    later = [step.micro[0].rows.tolist() for step in feed(rows, 1, 33, 40, 4, 4, Policy(), World(CPU))]
    assert everything[33:] == later


def test_an_error_while_reading_ahead_reaches_the_loop(built, tmp_path):
    shutil.copytree(built / "data", tmp_path / "data")
    shutil.copy(built / "manifest.json", tmp_path)
    dataset = PackedDataset(tmp_path)
    for shard in (tmp_path / "data").glob("*.parquet"):
        shard.write_bytes(b"PAR1 torn")
    with pytest.raises(Exception, match=r"(?i)parquet"):
        list(feed(Rows(dataset), 0, 0, 10, 1, 1, Policy(), World(CPU)))
