"""The walk against a literal, slow Algorithm 2 with live masked retrieval, step by step; and its policies."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splice.graph import MaskedGraph
from splice.seeded import key, mix, permutation
from splice.walk import WalkSettings, walk


class Matrix:
    """A retriever that is nothing but its scores [N, N]; counts how often it is asked under a mask."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self.n_documents = len(scores)

    def ranked(self, query: int, allowed: np.ndarray) -> list[int]:
        candidates = [d for d in range(self.n_documents) if allowed[d] and d != query and self.scores[query, d] > 0]
        return sorted(candidates, key=lambda d: (-self.scores[query, d], d))

    def neighbours(self, queries, m, threads=1):
        documents = np.full((len(queries), m), -1, np.int32)
        scores = np.zeros((len(queries), m))
        for i, q in enumerate(queries):
            top = self.ranked(int(q), np.ones(self.n_documents, bool))[:m]
            documents[i, : len(top)] = top
            scores[i, : len(top)] = self.scores[q, top]
        return documents, scores

    def best_unused(self, query, k, unused):
        top = np.array(self.ranked(query, unused)[:k], np.int64)
        return top, self.scores[query, top] if len(top) else np.zeros(0)

    def pair_scores(self, queries, documents):
        return self.scores[queries, documents]

    def subset(self, documents):
        return Matrix(self.scores[np.ix_(documents, documents)])


def algorithm_2(retriever: Matrix, lengths, s: WalkSettings, stream: int) -> list[list[tuple[int, int, int, int]]]:
    """The listing of the thesis with tail="trim": per example (document, parent, begin, end), D a set, ranking live.

    With max_uses a document comes back to D after the example, and with noise the step's number decides by a draw.
    """
    n = len(lengths)
    D = np.ones(n, bool)
    uses = np.zeros(n, int)
    roots = deque(permutation(n, s.seed, "roots", stream).tolist())
    strangers = deque(permutation(n, s.seed, "noise order", stream).tolist())
    steps = 0
    examples = []

    def draw() -> int:
        while uses[roots[0]]:
            roots.popleft()
        return roots.popleft()

    def instead(d_i: int) -> int:
        nonlocal steps
        steps += 1
        if mix(np.uint64(steps) ^ key(s.seed, "noise", stream)) / 2.0**64 >= s.noise:
            return d_i
        while not D[strangers[0]]:
            strangers.rotate(-1)
        return strangers[0]

    while (uses == 0).any():
        C: list[tuple[int, int]] = []
        Q: deque[int] = deque()

        def take(document: int, parent: int, C=C, Q=Q) -> None:
            D[document] = False
            uses[document] += 1
            C.append((document, parent))
            Q.append(document)

        take(draw(), -1)
        while True:
            while Q and sum(lengths[d] for d, _ in C) <= s.length:
                d = Q.popleft()
                for _ in range(s.k):
                    for d_i in retriever.ranked(d, D)[:1]:
                        take(instead(d_i), d)
            if s.exhausted == "short" or sum(lengths[d] for d, _ in C) >= s.length or not (uses == 0).any():
                break
            take(draw(), -1)
        D[(uses > 0) & (uses < s.max_uses)] = True
        if s.order == "reverse":
            C = C[::-1]
        elif s.order == "shuffle":
            C = [C[i] for i in permutation(len(C), s.seed, "order", stream, len(examples))]
        example, offset = [], 0
        for document, parent in C:
            kept = min(int(lengths[document]), s.length - offset)
            example.append((document, parent, 0, kept))
            offset += kept
        examples.append(example)
    return examples


def rows(plan) -> list[list[tuple[int, int, int, int]]]:
    examples = [[] for _ in range(plan.examples)]
    for e, d, p, b, c in zip(plan.example, plan.document, plan.parent, plan.begin, plan.end, strict=True):
        examples[e].append((d, p, b, c))
    return examples


def graph_of(retriever: Matrix, m: int) -> MaskedGraph:
    documents, scores = retriever.neighbours(np.arange(retriever.n_documents), m)
    return MaskedGraph(documents, scores.astype(np.float32), retriever, smallest_index=4)


@st.composite
def corpora(draw):
    n = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    levels = draw(st.sampled_from([2, 5, 1000]))  # few levels: many ties and many zeros
    scores = rng.integers(0, levels, (n, n)).astype(float)
    return Matrix(scores), rng.integers(1, 60, n)


@settings(max_examples=300, deadline=None)
@given(
    corpora(),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4, 64]),
    st.sampled_from(["identity", "reverse", "shuffle"]),
    st.sampled_from(["restart", "short"]),
    st.integers(16, 200),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.sampled_from([1, 1, 2, 5]),
)
def test_walk_equals_algorithm_2(corpus, k, m, order, exhausted, length, seed, noise, max_uses):
    retriever, lengths = corpus
    s = WalkSettings(k, length, order, exhausted, "trim", seed, noise, max_uses)
    plan = walk(graph_of(retriever, m), lengths, s, stream=7)
    assert rows(plan) == algorithm_2(retriever, lengths, s, 7)
    stepped = ~np.isnan(plan.arrays()["score"])
    parents, documents = plan.arrays()["parent"], plan.arrays()["document"]
    np.testing.assert_array_equal(stepped, parents >= 0)
    expected = retriever.scores[parents[stepped], documents[stepped]].astype(np.float32)
    np.testing.assert_array_equal(plan.arrays()["score"][stepped], expected)


def test_fallback_and_compaction_happen_and_change_nothing():
    rng = np.random.default_rng(3)
    retriever = Matrix(rng.random((300, 300)))
    lengths = rng.integers(1, 60, 300)
    s = WalkSettings(1, 400, "identity", "restart", "trim", 0)
    narrow, wide = graph_of(retriever, 3), graph_of(retriever, 299)
    assert rows(walk(narrow, lengths, s)) == rows(walk(wide, lengths, s))
    assert narrow.fallbacks > 0
    assert narrow.renewed > 0
    assert wide.fallbacks == 0


@settings(max_examples=200, deadline=None)
@given(corpora(), st.integers(1, 3), st.sampled_from(["identity", "reverse", "shuffle"]), st.integers(16, 90))
def test_carry_loses_no_token_and_pads_only_the_end(corpus, k, order, length):
    retriever, lengths = corpus
    plan = walk(graph_of(retriever, 4), lengths, WalkSettings(k, length, order, "restart", "carry", 1))
    examples = rows(plan)
    pieces: dict[int, list[tuple[int, int, int]]] = {}
    for number, example in enumerate(examples):
        for d, _, b, e in example:
            pieces.setdefault(d, []).append((number, b, e))
    for d, found in pieces.items():
        assert [b for _, b, _ in found] == [0, *(e for _, _, e in found[:-1])]
        assert found[-1][2] == lengths[d]
        assert [n for n, _, _ in found] == list(range(found[0][0], found[0][0] + len(found)))
    assert sorted(pieces) == list(range(len(lengths)))
    sizes = [sum(e - b for *_, b, e in example) for example in examples]
    assert sizes[:-1] == [length] * (len(sizes) - 1)
    assert sum(sizes) == lengths.sum()


@settings(max_examples=200, deadline=None)
@given(corpora(), st.integers(1, 3), st.sampled_from(["restart", "short"]), st.integers(16, 90))
def test_whole_never_cuts_and_leaves_out_only_what_cannot_fit(corpus, k, exhausted, length):
    retriever, lengths = corpus
    plan = walk(graph_of(retriever, 4), lengths, WalkSettings(k, length, "identity", exhausted, "whole", 1))
    used = sorted(plan.document)
    assert used == [d for d in range(len(lengths)) if lengths[d] <= length]
    assert all(b == 0 and e == lengths[d] for d, b, e in zip(plan.document, plan.begin, plan.end, strict=True))
    assert all(sum(e - b for *_, b, e in example) <= length for example in rows(plan))


def test_whole_with_restart_fills_what_the_longest_fitting_document_can():
    lengths = np.array([60, 30, 25, 10, 10])
    retriever = Matrix(np.zeros((5, 5)))  # nothing is related: every document is a root
    plan = walk(graph_of(retriever, 2), lengths, WalkSettings(1, 100, "identity", "restart", "whole", 0))
    for example in rows(plan)[:-1]:
        room = 100 - sum(e for *_, e in example)
        later = [d for other in rows(plan)[rows(plan).index(example) + 1 :] for d, *_ in other]
        assert all(lengths[d] > room for d in later)


def test_whole_retrieves_among_what_fits():
    lengths = np.array([50, 60, 40])
    scores = np.zeros((3, 3))
    root = int(permutation(3, 0, "roots", 0)[0])
    others = [d for d in range(3) if d != root]
    scores[root, others[0]], scores[root, others[1]] = 2.0, 1.0
    lengths[root], lengths[others[0]], lengths[others[1]] = 50, 60, 40
    plan = walk(graph_of(Matrix(scores), 2), lengths, WalkSettings(1, 100, "identity", "short", "whole", 0))
    assert [d for d, *_ in rows(plan)[0]] == [root, others[1]]


def test_a_document_longer_than_several_examples_is_carried_through_all_of_them():
    plan = walk(
        graph_of(Matrix(np.zeros((1, 1))), 1), np.array([250]), WalkSettings(1, 100, "identity", "restart", "carry", 0)
    )
    assert rows(plan) == [[(0, -1, 0, 100)], [(0, -1, 100, 200)], [(0, -1, 200, 250)]]


def test_seed_and_stream_change_the_roots():
    retriever = Matrix(np.zeros((50, 50)))
    lengths = np.full(50, 10)
    orders = {
        tuple(
            walk(
                graph_of(retriever, 1), lengths, WalkSettings(1, 100, "identity", "restart", "trim", seed), stream
            ).document
        )
        for seed in (0, 1)
        for stream in (0, 1)
    }
    assert len(orders) == 4


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_permutation_has_every_number_once(n):
    assert sorted(permutation(n, 5, "x").tolist()) == list(range(n))


def test_permutation_does_not_change_between_releases():
    assert permutation(8, 0, "roots", 0).tolist() == [3, 4, 1, 2, 0, 5, 7, 6]


def test_noise_takes_its_share_and_leaves_the_rest_of_the_draws_alone():
    rng = np.random.default_rng(5)
    retriever, lengths = Matrix(rng.random((600, 600)) + 0.1), np.full(600, 20)
    plans = {
        p: walk(graph_of(retriever, 8), lengths, WalkSettings(1, 200, "identity", "restart", "trim", 0, p))
        for p in (0.0, 0.25, 1.0)
    }
    assert len({plan.document[0] for plan in plans.values()}) == 1  # the first root
    means = {p: np.nanmean(plan.score) for p, plan in plans.items()}
    assert means[0.0] > means[0.25] > means[1.0]
    steps = [s for s in plans[1.0].score if not np.isnan(s)]
    assert abs(np.mean(steps) - 0.6) < 0.05  # pairs at random
    # With noise 0.25 three steps of four are as good as without.
    ranks = [s > 0.95 for s in plans[0.25].score if not np.isnan(s)]
    assert 0.6 < np.mean(ranks) / np.mean([s > 0.95 for s in plans[0.0].score if not np.isnan(s)]) < 0.9


def test_documents_are_used_again_but_not_in_one_example():
    rng = np.random.default_rng(6)
    n = 400
    hub = rng.random((n, n)) * 0.1 + 0.01
    hub[:, :5] += 1.0  # everyone's neighbours
    retriever, lengths = Matrix(hub), rng.integers(1, 30, n)
    for tail in ("trim", "whole"):
        s = WalkSettings(2, 100, "identity", "restart", tail, 0, max_uses=3)
        graph = graph_of(retriever, 4)
        plan = walk(graph, lengths, s)
        assert rows(plan) == rows(walk(graph_of(retriever, n - 1), lengths, s))
        uses = np.bincount(plan.document, minlength=n)
        assert uses.min() == 1
        assert uses.max() == 3
        assert uses[:5].tolist() == [3] * 5
        assert len(set(zip(plan.example, plan.document, strict=True))) == len(plan.document)
        assert graph.fallbacks > 0


def test_roots_can_be_given():
    """And with no neighbours at all the examples are that order, cut into pieces."""
    order = np.arange(30)[::-1].copy()
    graph = MaskedGraph(np.full((30, 1), -1, np.int32), np.zeros((30, 1), np.float32), None)
    plan = walk(graph, np.full(30, 10), WalkSettings(1, 50, "identity", "restart", "trim", 0), roots=order)
    assert plan.document == order.tolist()
