"""The report's measures against literal versions of themselves, known values, and what they are meant to tell apart."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splice.report import measures, ngrams, shapes
from splice.report.columns import depths
from splice.report.control import ALIKE, SPREAD, deal, dealt_places
from splice.report.figures import Flow, figure, grouped
from splice.report.relatedness import MEASURES, estimate, relate
from splice.report.windows import Window, own_tokens, window_of
from splice.report.zipf import BOUNDS, fit_exponent, zeta
from splice.store.shards import Example


def window(*pieces: list[int]) -> Window:
    return window_of([np.array(piece, np.int32) for piece in pieces])


windows = st.lists(st.lists(st.integers(0, 3), max_size=25), min_size=1, max_size=6).map(lambda pieces: window(*pieces))


# --- the zeta distribution


def test_zeta_known_values():
    value, slope = zeta(np.array([2.0, 4.0]))
    np.testing.assert_allclose(value, [math.pi**2 / 6, math.pi**4 / 90], rtol=1e-14)
    np.testing.assert_allclose(slope[0], -0.937548254315843753702574, rtol=1e-14)


def test_zeta_near_its_pole_and_far_from_it():
    special = pytest.importorskip("scipy.special")
    a = np.array([1.0001, 1.01, 1.5, 3.0, 10.0, 30.0])
    np.testing.assert_allclose(zeta(a)[0], special.zeta(a), rtol=1e-13)
    h = 1e-6
    middle = a[1:]
    np.testing.assert_allclose(
        zeta(middle)[1], (special.zetac(middle + h) - special.zetac(middle - h)) / (2 * h), rtol=1e-4
    )


@pytest.mark.parametrize("a", [1.3, 1.6, 2.5])
def test_fit_is_scipys_likeliest_exponent(a):
    stats = pytest.importorskip("scipy.stats")
    sample = stats.zipf(a).rvs(500, random_state=1).clip(max=10**6)
    fitted = fit_exponent(np.array([np.log(sample).mean()]))[0]

    def loss(b: float) -> float:
        return -stats.zipf(b).logpmf(sample).sum()

    assert loss(fitted) <= min(loss(fitted + step) for step in (-0.01, -0.001, 0.001, 0.01))
    assert abs(fitted - a) < 0.15


def test_fit_stays_within_its_bounds():
    low, high = fit_exponent(np.array([1000.0, 0.0]))
    assert low == pytest.approx(BOUNDS[0])
    assert high == pytest.approx(BOUNDS[1])


# --- counts


def test_counts_are_of_distinct_tokens_most_frequent_first():
    found = measures.counts(window([5, 5, 7], [5, 0]))
    assert found.tolist() == [3, 1, 1]
    assert measures.types_per_token(found) == 3 / 5
    assert measures.mean_log_count(found) == pytest.approx(math.log(3) / 3)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=50))
def test_rank_slope_is_the_least_squares_line(values):
    counts = np.sort(np.array(values))[::-1]
    slope = np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)[0]
    assert measures.rank_slope(counts) == pytest.approx(-slope, abs=1e-9)


def test_rank_slope_of_a_power_law_is_its_exponent():
    assert measures.rank_slope(1e6 / np.arange(1.0, 200) ** 1.3) == pytest.approx(1.3)
    assert measures.rank_slope(np.array([4])) == 0


# --- n-grams


def literal_covered(w: Window, n: int) -> np.ndarray:
    holders: dict[tuple[int, ...], set[int]] = {}
    for i, piece in enumerate(w.pieces):
        for start in range(len(piece) - n + 1):
            holders.setdefault(tuple(piece[start : start + n].tolist()), set()).add(i)
    covered = []
    for piece in w.pieces:
        mine = np.zeros(len(piece), bool)
        for start in range(len(piece) - n + 1):
            if len(holders[tuple(piece[start : start + n].tolist())]) > 1:
                mine[start : start + n] = True
        covered.append(mine)
    return np.concatenate(covered) if covered else np.zeros(0, bool)


@given(windows, st.integers(1, 6))
def test_covered_tokens_are_those_of_ngrams_in_several_pieces(w, n):
    assert ngrams.covered(ngrams.ngrams(w, n)).tolist() == literal_covered(w, n).tolist()


@given(windows, st.integers(1, 3), st.integers(0, 4))
def test_long_ngrams_are_found_within_what_short_ones_cover(w, short, more):
    within = ngrams.covered(ngrams.ngrams(w, short))
    found = ngrams.covered(ngrams.ngrams(w, short + more, within=within))
    assert found.tolist() == literal_covered(w, short + more).tolist()


def test_an_ngram_across_a_border_is_none():
    w = window([1, 2, 3], [4, 5, 6], [3, 4])
    assert not ngrams.covered(ngrams.ngrams(w, 2)).any()


@pytest.mark.parametrize("n", [1, 5, 50])
def test_hashes_depend_on_the_run_alone(n):
    tokens = np.tile(np.arange(60, dtype=np.int32), 3)
    hashes = ngrams.hashes(tokens, n)
    assert len(hashes) == len(tokens) - n + 1
    assert (hashes[:60] == hashes[60:120]).all()
    assert len(set(hashes[:60].tolist())) == 60
    assert (
        hashes[0] != ngrams.hashes(tokens[:n][::-1].copy(), n)[0] if n > 1 else True
    )  # the order of its tokens counts


@given(windows)
def test_near_duplicates_are_those_one_other_piece_holds(w):
    n = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "NEAR_TOKENS", 4)
        near = ngrams.near_duplicates(w, ngrams.ngrams(w, n))
    grams = [[tuple(p[i : i + n].tolist()) for i in range(len(p) - n + 1)] for p in w.pieces]

    def is_near(mine: list, other: list) -> bool:
        alike = min(len(mine), len(other)) >= 0.8 * max(len(mine), len(other))
        return alike and sum(g in set(other) for g in mine) >= 0.8 * len(mine)

    expected = [
        any(is_near(mine, other) for j, other in enumerate(grams) if j != i)
        for i, mine in enumerate(grams)
        if len(w.pieces[i]) >= 4
    ]
    assert near.tolist() == expected


def test_pieces_that_share_with_many_but_with_none_mostly_are_no_near_duplicates():
    parts = [list(range(100 * i, 100 * i + 30)) for i in range(4)]
    w = window([t for part in parts for t in part], *parts)
    assert ngrams.near_duplicates(w, ngrams.ngrams(w, 5)).tolist() == [False]
    copied = window(list(range(120)), [*range(110), *range(900, 910)])
    assert ngrams.near_duplicates(copied, ngrams.ngrams(copied, 5)).tolist() == [True, True]


def test_what_another_holds_beside_much_else_is_no_near_duplicate():
    w = window(list(range(200)), list(range(100)), list(range(130)))
    assert ngrams.near_duplicates(w, ngrams.ngrams(w, 5)).tolist() == [False, False, False]
    longer = window(list(range(124)), list(range(100)))
    assert ngrams.near_duplicates(longer, ngrams.ngrams(longer, 5)).tolist() == [True, True]


def test_tested_pieces_are_bounded():
    w = window(*([list(range(60))] * 200))
    assert ngrams.near_duplicates(w, ngrams.ngrams(w, 5)).tolist() == [True] * ngrams.NEAR_TESTED


def test_related_is_what_is_shared_but_not_copied():
    copied, phrase = list(range(60)), list(range(500, 510))
    w = window([*copied, *phrase, 1000], [1001, *copied, 1002, *phrase])
    related, of_copies, _ = measures.related_and_copied(w)
    total = 60 + 10 + 1 + 1 + 60 + 1 + 10
    assert of_copies == pytest.approx(120 / total)
    assert related == pytest.approx(20 / total)


# --- compression


def test_compression_gain():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 30_000, 2000).astype(np.int32)
    other = rng.integers(0, 30_000, 2000).astype(np.int32)
    assert measures.compression_gain(window_of([text])) == 0
    assert measures.compression_gain(window_of([text, text])) > 0.45
    assert abs(measures.compression_gain(window_of([text, other]))) < 0.05
    assert measures.compression_gain(window_of([text + 70_000, text + 70_000])) > 0.45
    assert (
        measures.compression_gain(window_of([text, text + 2**16])) < 0.3
    )  # other tokens, though their low bytes are equal


def test_compression_finds_a_repeat_far_back():
    text = np.random.default_rng(0).integers(0, 60_000, 1_500_000).astype(np.int32)
    assert measures.compression_gain(window_of([text, text])) > 0.45


# --- the control


def topics(n_windows: int, related: bool, seed: int = 0, equal: bool = False) -> list[Window]:
    """Windows of eight documents, of one topic each where `related`: common words, and phrases of the topic, each once.

    equal: those of a topic are of one length, as near-duplicates are.
    """
    rng = random.Random(seed)
    made = []
    for i in range(n_windows):
        pieces = []
        for _ in range(8):
            topic = i if related else rng.randrange(n_windows)
            tokens: list[int] = []
            for phrase in rng.sample(range(30), 8 + topic % 12 if equal else rng.randrange(8, 14)):
                tokens += range(1000 + 360 * topic + 12 * phrase, 1012 + 360 * topic + 12 * phrase)
                tokens += [int(60 * rng.random() ** 2) for _ in range(8)]
            pieces.append(tokens)
        made.append(window(*pieces))
    return made


@given(st.lists(windows, max_size=6), st.integers(0, 3))
def test_control_keeps_every_piece_and_the_number_in_each_window(sample, seed):
    dealt = deal(sample, seed)
    assert [len(w.bounds) for w in dealt] == [len(w.bounds) for w in sample]

    def pieces(of: list[Window]) -> Counter:
        return Counter(tuple(piece.tolist()) for w in of for piece in w.pieces)

    assert pieces(dealt) == pieces(sample)


def test_control_moves_pieces_among_those_alike_in_length():
    sizes = np.random.default_rng(1).integers(1, 10_000, 1000)
    of_window = np.arange(1000) // 20
    places = dealt_places(sizes, of_window, 0)
    assert sorted(places) == list(range(1000))
    rank = np.argsort(np.argsort(sizes, kind="stable"), kind="stable")
    near = np.abs(rank[places] - rank) < ALIKE
    assert (near | (np.abs(sizes[places] - sizes) <= SPREAD * sizes.sum() / 50)).all()
    before, after = np.bincount(of_window, sizes), np.bincount(of_window, sizes[places])
    assert np.abs(after / before - 1).mean() < 0.02
    assert (places != np.arange(1000)).mean() > 0.85
    assert (places == dealt_places(sizes, of_window, 0)).all()
    assert (places != dealt_places(sizes, of_window, 1)).any()


def kept_pairs(of_window: np.ndarray, places: np.ndarray) -> float:
    """The share of the pairs of pieces of one window that are in one window again."""
    pairs = Counter(zip(of_window[places].tolist(), of_window.tolist(), strict=True))
    return sum(n * (n - 1) for n in pairs.values()) / sum(n * (n - 1) for n in Counter(of_window.tolist()).values())


def test_control_parts_pieces_of_one_window_also_where_they_are_equally_long():
    of_window = np.repeat(np.arange(64), 8)
    lengths = np.repeat(np.random.default_rng(0).integers(100, 10_000, 64), 8)
    assert kept_pairs(of_window, np.arange(512)) == 1
    assert kept_pairs(of_window, dealt_places(lengths, of_window, 0)) < 0.06
    assert kept_pairs(of_window, dealt_places(np.ones(512, np.int64), of_window, 0)) == 0
    many = np.append(of_window, np.full(200, 5))  # more pieces than there are windows to be parted from
    assert kept_pairs(many, dealt_places(np.ones(712, np.int64), many, 0)) < 0.4


def test_documents_of_equal_length_are_related_in_the_dataset_alone():
    mixed, equal = relate(topics(40, related=True), 0), relate(topics(40, related=True, equal=True), 0)
    for found in (mixed, equal):
        assert found.control["related"].mean < 0.25 * found.dataset["related"].mean


def test_related_documents_move_every_measure_the_way_it_says():
    found = relate(topics(40, related=True), 0)
    for measure in MEASURES:
        if measure.key == "copied":
            continue
        dataset, control = found.dataset[measure.key], found.control[measure.key]
        apart = dataset.low - control.high if measure.rises else control.low - dataset.high
        assert apart > 0, measure.key


def test_random_packing_is_as_its_control():
    found = relate(topics(64, related=False), 0)
    for measure in MEASURES:
        dataset, control = found.dataset[measure.key], found.control[measure.key]
        assert dataset.low <= control.high, measure.key
        assert control.low <= dataset.high, measure.key


def test_few_windows_make_a_weak_control():
    assert relate(topics(7, related=True), 0).weak
    assert not relate(topics(8, related=True), 0).weak
    assert relate([], 0) is None


def test_alarm_is_raised_above_one_in_a_hundred():
    copies = [window(list(range(i, i + 100)), list(range(i, i + 100))) for i in range(10)]
    found = relate(copies, 0)
    assert (found.near, found.tested, found.alarm) == (20, 20, True)
    assert not relate(topics(10, related=False), 0).alarm


def test_interval_holds_the_mean_and_narrows_with_more_windows():
    values = np.random.default_rng(0).normal(5, 1, 400)
    few, many = estimate(values[:20], 0), estimate(values, 0)
    for e in (few, many):
        assert e.low < e.mean < e.high
    assert many.high - many.low == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert few.high - few.low > 2 * (many.high - many.low)
    assert estimate(np.array([3.0]), 0).low == estimate(np.array([3.0]), 0).high == 3.0
    assert estimate(np.array([0.0, 0.0, 0.4]), 0).low >= 0


# --- an example's own tokens


def example(ids: list[int], offsets: list[int], spans: list[tuple[int, int]], padding: int = 0) -> Example:
    n = len(offsets)
    return Example(
        0, 0, np.array(ids, np.int32), padding, ["d"] * n, ["s"] * n, np.array(offsets, np.int32),
        np.array(spans, np.int32).reshape(-1, 2), np.full(n, -1, np.int32), np.full(n, np.nan, np.float32),
    )  # fmt: skip


def test_own_tokens_have_no_separators_and_no_padding():
    # the end of a document that began before, a whole one, one that is cut, one of which only the BOS is here
    ids = [11, 12, 1, 0, 21, 22, 23, 1, 0, 31, 0, 2, 2]
    e = example(ids, [0, 3, 8, 10], [(4, 6), (0, 3), (0, 1), (0, 0)], padding=2)
    assert [piece.tolist() for piece in own_tokens(e, 0)] == [[11, 12], [21, 22, 23], [31], []]


def test_own_tokens_of_a_document_whose_bos_is_in_the_example_before():
    e = example([21, 22, 1, 0, 5], [0, 3], [(0, 2), (0, 1)])
    assert [piece.tolist() for piece in own_tokens(e, 0)] == [[21, 22], [5]]


def test_own_tokens_without_separators():
    e = example([7, 8, 9], [0, 1], [(3, 4), (0, 2)])
    assert [piece.tolist() for piece in own_tokens(e, None)] == [[7], [8, 9]]


# --- trees and histograms


@given(st.lists(st.integers(-1, 30), max_size=30))
def test_depths_are_steps_to_the_root(drawn):
    parent = [min(p, i - 1) for i, p in enumerate(drawn)]

    def steps(i: int) -> int:
        return 0 if parent[i] < 0 else 1 + steps(parent[i])

    assert depths(np.array(parent, np.int64)).tolist() == [steps(i) for i in range(len(parent))]


def test_depth_of_a_long_path():
    assert depths(np.arange(-1, 999)).tolist() == list(range(1000))
    assert depths(np.append(np.arange(1, 1000), -1)).tolist() == list(range(999, -1, -1))  # in reverse order


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=50))
def test_histograms_hold_every_value(values):
    v = np.array(values)
    for data in (shapes.whole_number_histogram([v]), shapes.log_histogram([v]), shapes.score_histogram([v / 7])):
        assert data.counts[0].sum() == len(v)
        assert data.shares(0).sum() == pytest.approx(1)
        assert (np.diff(data.edges) > 0).all()


def test_few_whole_numbers_have_a_bin_each():
    data = shapes.whole_number_histogram([np.array([3, 3, 5]), np.array([4])])
    assert data.edges.tolist() == [2.5, 3.5, 4.5, 5.5]
    assert [c.tolist() for c in data.counts] == [[2, 0, 1], [0, 1, 0]]


def test_scores_beyond_the_last_bin_are_counted_in_it():
    v = np.append(np.linspace(0, 1, 1000), [50.0, 60.0])
    data = shapes.score_histogram([v])
    assert data.edges[-1] < 2
    assert data.beyond == (v > data.edges[-1]).sum()
    assert data.counts[0][-1] >= data.beyond >= 2


def test_trend_is_mean_and_quantiles_of_each_bin():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, 300), rng.normal(size=300)
    y[x == 2] += 10
    x[x == 3] = 0
    x[:2] = 3  # too few to be drawn
    found = shapes.trend(x, y, np.arange(5) - 0.5)
    assert found.x.tolist() == [0, 1, 2]
    for i in range(3):
        mine = y[x == i]
        assert found.mean[i] == pytest.approx(mine.mean())
        assert (found.low[i], found.high[i]) == pytest.approx(tuple(np.quantile(mine, (0.1, 0.9))))
        assert found.n[i] == len(mine)


def test_roots_have_no_place_in_trends_of_scores():
    found = shapes.by_place(np.array([1, 2, 2, 2, 2]), np.array([np.nan, 4, 4, 4, np.nan], np.float32), 2)
    assert (found.x.tolist(), found.mean.tolist(), found.n.tolist()) == ([2], [4], [3])


# --- the manifest's figures


def test_figures_by_key():
    manifest = {
        "ledger": {"sources": {"a": {"n": 2, "why": {"x": 5, "y": 1}}, "b": {"n": 3, "why": {}}}},
        "parts": [{"t": 7}],
    }
    assert figure(manifest, "ledger.sources.*.n") == 5
    assert figure(manifest, "ledger.sources.*.why.* + ledger.sources.*.n") == 11
    assert figure(manifest, "parts.0.t") == 7
    assert figure(manifest, "ledger.absent.*.n") == 0


def test_small_entries_are_grouped():
    assert grouped({"a": 1, "b": 5, "c": 3}, 3) == {"b": 5, "c": 3, "a": 1}
    assert grouped({"a": 1, "b": 5, "c": 3, "d": 2}, 3) == {"b": 5, "c": 3, "2 others": 3}


def test_flows_of_many_sources_keep_their_sums():
    from splice.report.flow import group_origins

    flows = [Flow(0, f"s{i}", target, i + 1) for i in range(20) for target in ("packed", "too long")]
    flows.append(Flow(1, "packed", "examples", 210))
    kept = group_origins(flows, 8)
    assert len({flow.origin for flow in kept if flow.stage == 0}) == 8
    for target in ("packed", "too long"):
        assert sum(f.count for f in kept if f.stage == 0 and f.target == target) == 210
    assert [f for f in kept if f.stage == 1] == [flows[-1]]
