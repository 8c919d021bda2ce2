"""Intervals: known values, what they have to cover, and that nothing but the seed changes them."""

from __future__ import annotations

import numpy as np
import pytest

from splice.eval import statistics
from splice.eval.statistics import COVERED, bootstrap, is_proportion, mcnemar, student, two_way, wilson

pytest.importorskip("scipy")
rng = np.random.default_rng  # of what tests draw; the intervals have their own


def covers(intervals: np.ndarray, truth: float) -> float:
    """Percent of the intervals that hold the truth."""
    return 100 * float(((intervals[:, 0] <= truth) & (truth <= intervals[:, 1])).mean())


def paired_sets(sets: int, simulations: int, queries: int = 100, delta: float = 0.03):
    """Sums of correct answers of A minus those of B, [sets, simulations]: sets differ in difficulty and in the delta."""
    draw = rng(sets)
    b = np.clip(0.6 + draw.normal(0, 0.05, (sets, simulations)), 0, 1)
    a = np.clip(b + delta + draw.normal(0, 0.04, b.shape), 0, 1)
    sums = draw.binomial(queries, a) - draw.binomial(queries, b)
    return sums.astype(float), np.full(b.shape, queries)


def test_the_t_interval_is_scipys_paired_one_where_clusters_are_of_one_size():
    from scipy.stats import ttest_rel

    a, b = np.array([0.70, 0.64, 0.71, 0.55, 0.68]), np.array([0.66, 0.65, 0.60, 0.52, 0.61])
    expected = ttest_rel(a, b).confidence_interval()
    found = student((40 * (a - b))[:, None], np.full((5, 1), 40))[0]
    np.testing.assert_allclose(found, [expected.low, expected.high])


def test_the_t_interval_of_unequal_clusters_by_hand():
    # ratio 12 / 30; residuals 4 - 4, 6 - 4, 2 - 4; error = sqrt(3 / 2 * 8) / 30; t(2) = 4.302653
    found = student(np.array([[4.0], [6.0], [2.0]]), np.array([[10], [10], [10]]))[0]
    np.testing.assert_allclose(found, [0.4 - 4.302653 * 12**0.5 / 30, 0.4 + 4.302653 * 12**0.5 / 30], rtol=1e-6)
    # ratio 12 / 40; residuals 4 - 3, 6 - 3, 2 - 6
    found = student(np.array([[4.0], [6.0], [2.0]]), np.array([[10], [10], [20]]))[0]
    half = 4.302653 * (1.5 * 26) ** 0.5 / 40
    np.testing.assert_allclose(found, [0.3 - half, 0.3 + half], rtol=1e-6)


def test_of_many_clusters_all_intervals_agree_with_the_normal_one():
    values = rng(1).normal(3, 2, (4000, 1))
    half = 1.96 * values.std() / 4000**0.5
    expected = [values.mean() - half, values.mean() + half]
    counts = np.ones((4000, 1), int)
    np.testing.assert_allclose(bootstrap(values, counts, 0)[0], expected, atol=half / 20)
    np.testing.assert_allclose(student(values, counts)[0], expected, atol=half / 100)


def test_a_larger_cluster_weighs_more():
    """The ratio of totals, with the linearised error that theory gives it; the mean of cluster means is elsewhere."""
    draw = rng(2)
    counts = draw.integers(5, 400, (600, 1))
    sums = draw.binomial(counts, np.where(counts > 200, 0.8, 0.4)).astype(float)
    ratio = sums.sum() / counts.sum()
    assert abs(ratio - (sums / counts).mean()) > 0.09
    sampled, linear = bootstrap(sums, counts, 0)[0], student(sums, counts)[0]
    assert sampled.mean() == pytest.approx(ratio, abs=0.002)
    np.testing.assert_allclose(sampled, linear, atol=0.002)


@pytest.mark.parametrize(("sets", "covered"), COVERED.items())
def test_coverage_of_the_difference_of_paired_sets(sets, covered):
    """Of 20 sets as good as said, of 5 far from it; Student's t of any number."""
    sums, counts = paired_sets(sets, simulations=2000)
    assert covers(bootstrap(sums, counts, 0, draws=4000), 0.03) == pytest.approx(covered, abs=2)
    assert covers(student(sums, counts), 0.03) == pytest.approx(95, abs=1.2)


def test_coverage_where_all_sets_ask_the_same_items():
    """An item is as easy in all sets: only the two-way bootstrap knows that other items might have been asked."""
    truth, shape = 0.03, (20, 60)
    draw, both, over_sets = rng(3), [], []
    counts = np.ones(shape)
    for simulation in range(1000):
        delta = truth + draw.normal(0, 0.04, (shape[0], 1)) + draw.normal(0, 0.3, (1, shape[1]))
        a, b = draw.random(shape) < 0.5 + delta / 2, draw.random(shape) < 0.5 - delta / 2
        sums = a.astype(float) - b
        both.append(two_way(sums, counts, simulation, draws=400))
        over_sets.append(bootstrap(sums.sum(1)[:, None], counts.sum(1)[:, None], simulation, draws=400)[0])
    assert 93 < covers(np.array(both), truth) <= 100
    assert covers(np.array(over_sets), truth) < 80


def test_the_two_way_bootstrap_has_the_variance_of_owens_theorem():
    """Of cells that are sums of a row, a column and noise: row / S + column / I + 3 noise / (S I)."""
    draw, s, i = rng(4), 120, 80
    parts = draw.normal(0, 1, (s, 1)), draw.normal(0, 2, (1, i)), draw.normal(0, 15, (s, i))
    low, high = two_way(sum(parts), np.ones((s, i)), 0)
    variance = 1 / s + 4 / i + 3 * 225 / (s * i)
    assert high - low == pytest.approx(2 * 1.96 * variance**0.5, rel=0.1)


def test_cells_of_several_samples_weigh_by_them():
    values = rng(5).random((10, 12))
    counts = rng(6).integers(1, 4, values.shape)
    assert two_way(3 * values, np.full(values.shape, 3), 0) == pytest.approx(two_way(values, np.ones(values.shape), 0))
    low, high = two_way(values * counts, counts, 0)
    assert low < (values * counts).sum() / counts.sum() < high
    constant = two_way(0.25 * counts, counts, 0)
    assert constant == pytest.approx((0.25, 0.25))


def test_items_and_clusters_are_drawn_apart():
    """Were they drawn alike, a diagonal would weigh more than its share."""
    low, high = two_way(np.eye(100), np.ones((100, 100)), 0)
    assert low < 0.01 < high < 0.02


def test_one_cluster_has_no_interval_and_one_that_never_varies_has_no_width():
    sums, counts = np.array([[3.0, 8.0, 5.0], [0.0, 8.0, 5.0]]), np.array([[5, 10, 5], [0, 10, 5]])
    for found in (bootstrap(sums, counts, 0, draws=100), student(sums, counts)):
        assert np.isnan(found[0]).all()
        np.testing.assert_array_equal(found[1:], [[0.8, 0.8], [1, 1]])
    assert np.isnan(wilson(np.array([[1.0]]), np.array([[1]]))).all()


def test_clusters_without_a_sample_are_not_drawn():
    sums, counts = rng(7).random((30, 1)) * 5, np.full((30, 1), 5)
    padded = [np.concatenate([x, np.zeros((10, 1), x.dtype)]) for x in (sums, counts)]
    np.testing.assert_array_equal(bootstrap(*padded, 0, 500), bootstrap(sums, counts, 0, 500))
    np.testing.assert_allclose(student(*padded), student(sums, counts))


def test_figures_do_not_depend_on_those_beside_them():
    draw = rng(8)
    counts = draw.integers(0, 3, (25, 40))
    sums = draw.random((25, 40)) * counts
    together = bootstrap(sums, counts, 0, 300)
    apart = [bootstrap(sums[:, [k]], counts[:, [k]], 0, 300)[0] for k in range(40)]
    np.testing.assert_array_equal(together, apart)


def test_a_seed_gives_the_same_bits_whatever_the_blocks(monkeypatch):
    """Sums are exact, so blocks of draws, which change how the BLAS adds, change nothing."""
    values = rng(9).normal(2, 1, (37, 5)) * 1e3
    counts = rng(9).integers(1, 9, values.shape)
    cells = rng(9).normal(0, 1, (61, 127)) ** 5
    first = bootstrap(values, counts, 4, 999), two_way(cells, np.ones(cells.shape), 4, 999)
    for block in (40, 1000, 7919):
        monkeypatch.setattr(statistics, "BLOCK", block)
        np.testing.assert_array_equal(bootstrap(values, counts, 4, 999), first[0])
        assert two_way(cells, np.ones(cells.shape), 4, 999) == first[1]
    assert (bootstrap(values, counts, 5, 999) != first[0]).all()


def test_the_bits_are_these():
    """What draws them does not change with numpy: a change here changes every interval that was published."""
    values = np.arange(64.0) ** 2 % 97
    assert bootstrap(values[:, None], np.ones((64, 1)), 0)[0] == pytest.approx([42.187109375, 57.203125], rel=1e-13)
    found = two_way(values.reshape(8, 8), np.ones((8, 8)), 0)
    assert found == pytest.approx((37.109375, 61.094921875), rel=1e-13)


def test_drawing_is_with_replacement_and_even():
    drawn = np.concatenate(list(statistics._weights(7, 3000, 0, "clusters")))
    assert drawn.shape == (3000, 7)
    assert (drawn.sum(1) == 7).all()
    np.testing.assert_allclose(drawn.mean(0), 1, atol=0.06)
    np.testing.assert_allclose(drawn.var(0), 6 / 7, atol=0.08)  # multinomial
    assert len(np.unique(drawn, axis=0)) > 900  # of the 1716 there are


def test_all_that_is_drawn_is_summed_exactly(monkeypatch):
    """The values are rounded for as many of them as a draw has: clusters, or cells."""
    asked = []
    monkeypatch.setattr(statistics, "_summable", lambda values, weight: asked.append(weight) or values)
    bootstrap(np.ones((7, 2)), np.array([[1, 1]] * 5 + [[0, 1]] * 2), 0, 10)
    two_way(np.ones((3, 4)), np.ones((3, 4)), 0, 10)
    assert sorted(asked) == [5, 7, 12]


def test_values_are_summed_exactly_and_hardly_changed():
    values = rng(10).normal(0, 1e6, 500)
    found = statistics._summable(values, 500)
    assert abs(found - values).max() <= 2**-52 * 500 * abs(values).max()
    assert found[::-1].cumsum()[-1] == found.cumsum()[-1] == found.sum()
    np.testing.assert_array_equal(statistics._summable(np.zeros(3), 3), np.zeros(3))


def test_wilson_is_what_the_textbook_has():
    """Agresti and Coull 1998 tabulate none of 10, 1 of 10, 5 of 10; scipy has the same."""
    from scipy.stats import binomtest

    for right in (0, 1, 5, 10):
        values = (np.arange(10) < right).astype(float)[:, None]
        expected = binomtest(right, 10).proportion_ci(method="wilson")
        np.testing.assert_allclose(wilson(values, np.ones((10, 1))), [[expected.low, expected.high]], atol=1e-12)
    for n in range(2, 200):
        none, all_right = wilson(np.zeros((n, 1)), np.ones((n, 1)))[0], wilson(np.ones((n, 1)), np.ones((n, 1)))[0]
        assert none[0] >= 0
        assert all_right[1] <= 1
    found = wilson(np.array([[0.0], [0.0], [1.0]]), np.array([[1], [0], [1]]))  # one of two, and a cluster without any
    np.testing.assert_allclose(found, [[0.0945, 0.9055]], atol=1e-4)


def test_a_proportion_is_of_one_yes_or_no_a_cluster():
    sums = np.array([[1.0, 1, 0.5, 2], [0, 1, 1, 2]])
    counts = np.array([[1, 2, 1, 2], [1, 1, 1, 2]])
    assert is_proportion(sums, counts).tolist() == [True, False, False, False]


def test_mcnemar_by_hand():
    """9 to 1 of ten fair coins: 2 (1 + 10) / 1024."""
    a, b = np.array([1] * 9 + [0] + [1] * 30 + [0] * 20), np.array([0] * 9 + [1] + [1] * 30 + [0] * 20)
    assert mcnemar(a, b) == (9, 1, pytest.approx(22 / 1024))
    assert mcnemar(b, a) == (1, 9, pytest.approx(22 / 1024))
    assert mcnemar(a, a) == (0, 0, 1.0)
    assert mcnemar(np.array([1, 0]), np.array([0, 1]))[2] == 1.0


def test_mcnemar_of_agrestis_approval_ratings():
    """Categorical Data Analysis, table 10.1: 150 and 86 changed their minds; z squared is 17.36, so p is near 3e-5."""
    a, b = np.repeat([1, 1, 0, 0], (794, 150, 86, 570)), np.repeat([1, 0, 1, 0], (794, 150, 86, 570))
    only_a, only_b, p = mcnemar(a, b)
    assert (only_a, only_b) == (150, 86)
    assert p == pytest.approx(3.7e-5, rel=0.05)
