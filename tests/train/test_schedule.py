"""The learning rate: warm-up, cosine, constant, WSD."""

import math

import pytest

pytest.importorskip("torch")

import itertools

from splice.train.schedule import learning_rate
from splice.train.settings import OptimizerSettings


def rates(steps, **settings):
    asked = OptimizerSettings(lr=1.0, end_lr=0.1, **settings)
    return [learning_rate(step, steps, asked) for step in range(steps)]


@pytest.mark.parametrize("schedule", ["cosine", "constant", "wsd"])
def test_warm_up_is_a_line_that_reaches_the_rate_at_its_last_step(schedule):
    assert rates(20, warmup=4, schedule=schedule)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_cosine_ends_at_the_end_rate_and_is_halfway_in_the_middle():
    found = rates(21, schedule="cosine")
    assert found[0] == 1.0
    assert found[10] == pytest.approx((1 + 0.1) / 2)
    assert found[20] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(found))
    assert found[5] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)


def test_constant_stays():
    assert rates(10, schedule="constant") == [1.0] * 10


def test_wsd_is_constant_and_then_a_line_to_the_end():
    found = rates(100, schedule="wsd", warmup=10, decay=0.2)
    assert found[9:80] == [1.0] * 71
    assert found[-1] == pytest.approx(0.1)
    slopes = [b - a for a, b in itertools.pairwise(found[80:])]
    assert slopes == pytest.approx([slopes[0]] * 19)


def test_without_an_end_rate_it_is_a_tenth():
    asked = OptimizerSettings(lr=2e-4)
    assert learning_rate(99, 100, asked) == pytest.approx(2e-5)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_one_step_runs_at_the_rate(schedule):
    assert rates(1, schedule=schedule) == [1.0]
