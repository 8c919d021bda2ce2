"""The merged retriever against its definition written out, document by document."""

from __future__ import annotations

import numpy as np
import pytest

from splice.bm25 import Bm25Index, Bm25Settings
from splice.errors import SpliceError
from splice.graph import MaskedGraph

pytest.importorskip("faiss", reason="the extra `dense` is not installed")

from splice.dense import DenseIndex
from splice.hybrid import HybridIndex, HybridSettings

N = 150


@pytest.fixture(scope="module")
def both() -> tuple[Bm25Index, DenseIndex]:
    """150 documents; what two of them share in words they share only partly in their embeddings."""
    rng = np.random.default_rng(3)
    words = [f"w{i}" for i in range(400)]
    topic = rng.integers(0, 12, N)
    texts = [
        " ".join(rng.choice(words[30 * t : 30 * t + 40], size=rng.integers(5, 60))).encode() for t in topic.tolist()
    ]
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)])
    centres = rng.normal(size=(12, 24))
    embeddings = (centres[(topic + (rng.random(N) < 0.3)) % 12] + 0.5 * rng.normal(size=(N, 24))).astype(np.float16)
    return Bm25Index.build([(data, offsets)], Bm25Settings()), DenseIndex.build(embeddings)


def literal(both, s: HybridSettings) -> np.ndarray:
    """float64 [N, N]: the score of every pair; -inf where the document is in neither window."""
    scores = np.full((N, N), -np.inf)
    for q in range(N):
        for index, weight in zip(both, (s.bm25_weight, 1 - s.bm25_weight), strict=True):
            documents, found = index.neighbours(np.array([q]), s.window)
            window = [(d, x) for d, x in zip(documents[0].tolist(), found[0].tolist(), strict=True) if d >= 0]
            best, worst = max(x for _, x in window), min(x for _, x in window)
            for rank, (d, x) in enumerate(window, 1):
                if s.merge == "rrf":
                    part = 1 / (60 + rank)
                else:
                    part = (x - worst) / (best - worst) if best > worst else 1.0
                scores[q, d] = max(scores[q, d], 0.0) + weight * part
    return scores


def ranking(scores: np.ndarray, k: int) -> list[int]:
    return [d for d in sorted(range(N), key=lambda d: (-scores[d], d)) if scores[d] > -np.inf][:k]


SETTINGS = [
    HybridSettings(window=20),
    HybridSettings(window=400),
    HybridSettings("sum", window=20),
    HybridSettings("sum", bm25_weight=0.8, window=60),
    HybridSettings("rrf", bm25_weight=0.0, window=10),
    HybridSettings("sum", bm25_weight=1.0, window=10),
    HybridSettings(window=1),
]


@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_neighbours_are_those_of_the_definition(both, s):
    scores, index = literal(both, s), HybridIndex(*both, s)
    documents, found = index.neighbours(np.arange(N), 25)
    for q in range(N):
        expected = ranking(scores[q], 25)
        assert documents[q].tolist() == expected + [-1] * (25 - len(expected))
        np.testing.assert_allclose(found[q, : len(expected)], scores[q, expected], rtol=1e-12)
    assert not (documents == np.arange(N)[:, None]).any()


@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_a_mask_and_a_subset_change_no_score(both, s):
    scores, index = literal(both, s), HybridIndex(*both, s)
    rng = np.random.default_rng(0)
    for _ in range(15):
        unused = rng.random(N) < 0.4
        members = np.flatnonzero(unused)
        subset = index.subset(members).subset(np.arange(0, len(members), 2))
        halved = members[::2]
        left = np.isin(np.arange(N), halved)
        for place in (0, len(halved) // 2):
            q = int(halved[place])
            documents, found = index.best_unused(q, 3, unused)
            assert documents.tolist() == ranking(np.where(unused, scores[q], -np.inf), 3)
            np.testing.assert_allclose(found, scores[q, documents], rtol=1e-12)
            expected = ranking(np.where(left, scores[q], -np.inf), 3)
            inside, _ = subset.best_unused(place, 3, np.ones(len(halved), bool))
            assert halved[inside].tolist() == expected
            listed, _ = subset.neighbours(np.array([place]), 3)
            assert halved[listed[0][listed[0] >= 0]].tolist() == expected


def test_scores_of_pairs_are_those_of_the_lists_and_0_outside_the_windows(both):
    s = HybridSettings(window=12)
    scores, index = literal(both, s), HybridIndex(*both, s)
    queries, documents = (axis.ravel() for axis in np.indices((N, N)))
    pairs = index.pair_scores(queries, documents).reshape(N, N)
    np.testing.assert_allclose(pairs, np.where(scores > -np.inf, scores, 0.0), rtol=1e-12)


@pytest.mark.parametrize("s", SETTINGS[:3], ids=str)
def test_retrieval_from_the_graph_is_masked_retrieval_of_the_whole(both, s):
    scores, index = literal(both, s), HybridIndex(*both, s)
    neighbours, found = index.neighbours(np.arange(N), 2)
    graph = MaskedGraph(neighbours, found, index, smallest_index=4)
    unused = np.ones(N, bool)
    for document in np.random.default_rng(1).permutation(N).tolist():
        graph.use(document)
        unused[document] = False
        graph.compact(lambda d=document: (d,), 2)
        expected = ranking(np.where(unused, scores[document], -np.inf), 2)
        assert [d for d, _ in graph.retrieve(document, 2)] == expected
    assert graph.fallbacks > 10
    assert graph.renewed > 0


def test_each_alone_is_itself(both):
    for weight, alone in ((1.0, both[0]), (0.0, both[1])):
        index = HybridIndex(*both, HybridSettings(bm25_weight=weight, window=9))
        documents, _ = index.neighbours(np.arange(N), 9)
        expected, _ = alone.neighbours(np.arange(N), 9)
        assert (documents == expected)[expected >= 0].all()
        assert (expected >= 0).mean() > 0.9


def test_threads_change_nothing(both):
    index = HybridIndex(*both, HybridSettings(window=30))
    one, two = index.neighbours(np.arange(N), 9), index.neighbours(np.arange(N), 9, threads=3)
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


def test_a_saved_index_is_the_same(both, tmp_path):
    index = HybridIndex(*both, HybridSettings("sum", 0.3, 40))
    index.save(tmp_path)
    loaded = HybridIndex.load(tmp_path)
    assert loaded.settings == index.settings
    one, two = index.neighbours(np.arange(N), 9), loaded.neighbours(np.arange(N), 9)
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    (tmp_path / "hybrid.json").write_text("{")
    with pytest.raises(SpliceError, match=r"hybrid\.json: .*build again"):
        HybridIndex.load(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"merge": "max"}, "merge is 'max'"),
        ({"bm25_weight": 1.5}, "weight of BM25 is 1.5"),
        ({"window": 0}, "window is 0"),
    ],
)
def test_settings_that_cannot_be(wrong, said):
    with pytest.raises(SpliceError, match=said):
        HybridSettings(**wrong)
