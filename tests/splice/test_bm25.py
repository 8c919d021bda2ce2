"""The BM25 engine against the formula written out, and against itself: batches, threads, subsets, files."""

import json
import math
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from splice.bm25 import Bm25Index, Bm25Settings
from splice.errors import SpliceError

FACTOR = {"linear": float, "sqrt": math.sqrt, "binary": lambda tf: 1.0}


def chunks_of(texts: list[bytes], n_chunks: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Arrow's binary layout; chunks but the first do not start at 0."""
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    cuts = np.linspace(0, len(texts), n_chunks + 1).astype(int)
    return [(data, offsets[a : b + 1]) for a, b in pairwise(cuts)]


def build(texts: list[bytes], threads: int = 1, **options) -> Bm25Index:
    return Bm25Index.build(chunks_of(texts), Bm25Settings(**options), threads)


def brute_force(texts: list[bytes], k1=1.5, b=0.75, query_tf="linear", max_df=1.0) -> np.ndarray:
    """float64 [N, N]: the score of every query (row) and document (column), term by term, as the formula reads."""
    bags = [Counter(re.findall(rb"[a-z0-9_]{2,}", text.lower())) for text in texts]
    n = len(texts)
    average = sum(bag.total() for bag in bags) / n
    dfs = Counter(term for bag in bags for term in bag)
    scores = np.zeros((n, n))
    for q in range(n):
        for d in range(n):
            for term in bags[q].keys() & bags[d].keys():
                if dfs[term] <= max_df * n:
                    idf = math.log(1 + (n - dfs[term] + 0.5) / (dfs[term] + 0.5))
                    tf = bags[d][term]
                    norm = k1 * (1 - b + b * bags[d].total() / average)
                    scores[q, d] += FACTOR[query_tf](bags[q][term]) * idf * tf * (k1 + 1) / (tf + norm)
    return scores


def ranking(scores: np.ndarray, k: int) -> list[int]:
    """The documents of the k highest scores above 0, ties by number."""
    return [d for d in sorted(range(len(scores)), key=lambda d: (-scores[d], d)) if scores[d] > 0][:k]


def canonical(index: Bm25Index) -> np.ndarray:
    """float64 [N, N]: the index's own scores of all pairs, 0 for a document and itself."""
    n = index.n_documents
    scores = index.pair_scores(*(axis.ravel() for axis in np.indices((n, n)))).reshape(n, n)
    np.fill_diagonal(scores, 0)
    return scores


def check_neighbours(index: Bm25Index, scores: np.ndarray, m: int, queries=None, threads=1):
    """Neighbours are exactly the ranking of the canonical `scores`, to the bit."""
    queries = np.arange(index.n_documents) if queries is None else queries
    documents, found = index.neighbours(queries, m, threads)
    assert documents.shape == found.shape == (len(queries), m)
    assert documents.dtype == np.int32
    assert found.dtype == np.float64
    for i, q in enumerate(queries):
        expected = ranking(scores[q], m)
        assert documents[i].tolist() == expected + [-1] * (m - len(expected))
        assert found[i].tolist() == scores[q, expected].tolist() + [0.0] * (m - len(expected))


def zipf_texts(n: int, vocabulary: int, seed: int, mean_words: int = 60) -> list[bytes]:
    """Documents of Zipf-distributed words, with some topics so that neighbours are more than chance."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, vocabulary + 1)
    lengths = rng.geometric(1 / mean_words, n)
    common = rng.choice(vocabulary, lengths.sum(), p=p / p.sum())
    texts, at = [], 0
    for i, length in enumerate(lengths):
        rare = rng.integers(0, 40, length // 8) + 40 * (i % (n // 10))
        texts.append(b" ".join([b"w%d" % w for w in common[at : at + length]] + [b"topic%d" % w for w in rare]))
        at += length
    return texts


tiny_texts = st.lists(
    st.one_of(
        st.lists(st.sampled_from([b"aa", b"bb", b"cc", b"dd", b"ee", b"x"]), max_size=8).map(b" ".join),
        st.sampled_from([b"", b"aa", b"aa bb cc", b"-- z"]),
    ),
    min_size=1,
    max_size=14,
)
any_options = st.fixed_dictionaries(
    {
        "k1": st.sampled_from([0.0, 0.4, 1.5, 3.0]),
        "b": st.sampled_from([0.0, 0.3, 0.75, 1.0]),
        "query_tf": st.sampled_from(["linear", "sqrt", "binary"]),
        "max_df": st.sampled_from([0.3, 0.5, 1.0]),
    }
)


@pytest.fixture(params=[0, 32], ids=["batches", "singly"], scope="module")
def few_queries(request):
    """Both ways to rank: batches with dense rows, and one query at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("splice.bm25.FEW_QUERIES", request.param)
        yield


@settings(deadline=None, max_examples=150)
@given(tiny_texts, any_options, st.integers(1, 16))
def test_neighbours_equal_brute_force(few_queries, texts, options, m):
    index = build(texts, **options)
    scores = canonical(index)
    expected = brute_force(texts, **options)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=0)
    check_neighbours(index, scores, m)


@settings(deadline=None, max_examples=100)
@given(tiny_texts, any_options, st.integers(0, 16), st.data())
def test_best_unused_is_the_masked_ranking(texts, options, k, data):
    index = build(texts, **options)
    scores = canonical(index)
    unused = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    query = data.draw(st.integers(0, len(texts) - 1))
    before = unused.copy()
    documents, found = index.best_unused(query, k, unused)
    expected = ranking(np.where(unused, scores[query], 0), k)
    assert documents.tolist() == expected
    assert found.tolist() == scores[query, expected].tolist()
    assert (unused == before).all()


@settings(deadline=None, max_examples=60)
@given(tiny_texts, any_options, st.data())
def test_a_subset_scores_as_the_whole(few_queries, texts, options, data):
    index = build(texts, **options)
    chosen = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    part = index.subset(chosen)
    scores = canonical(index)[np.ix_(chosen, chosen)]
    assert part.n_documents == len(chosen)
    assert (canonical(part) == scores).all()
    check_neighbours(part, scores, 5)
    again = part.subset(np.arange(0, len(chosen), 2))
    check_neighbours(again, scores[::2, ::2], 5)


@pytest.fixture(scope="module")
def medium():
    """2 500 documents with frequent and rare words, 60 equal ones, empty ones; and all pair scores."""
    texts = zipf_texts(2500, 3000, seed=0)
    texts[100:160] = [texts[99]] * 60
    texts[7] = texts[2400] = b""
    index = build(texts)
    return texts, index, canonical(index)


def test_medium_corpus_uses_head_and_tail_and_is_exact(medium):
    texts, index, scores = medium
    rows = index._head.rows
    assert 5 < (rows >= 0).sum() < 0.2 * len(rows)
    check_neighbours(index, scores, 20)
    check_neighbours(index, scores, 3, queries=np.array([5, 5, 2499, 0, 7, 130]))
    for q in (0, 99, 1234):
        expected = brute_force_row(texts, q)
        np.testing.assert_allclose(scores[q], expected, rtol=1e-12)


def brute_force_row(texts: list[bytes], q: int) -> np.ndarray:
    """One row of brute_force by default settings, 0 for the query itself."""
    bags = [Counter(text.split()) for text in texts]
    n = len(texts)
    average = sum(bag.total() for bag in bags) / n
    dfs = Counter(term for bag in bags for term in bag)
    row = [
        sum(
            bags[q][t] * math.log(1 + (n - dfs[t] + 0.5) / (dfs[t] + 0.5)) * bag[t] * 2.5
            / (bag[t] + 1.5 * (0.25 + 0.75 * bag.total() / average))
            for t in bags[q].keys() & bag.keys()
        )
        for bag in bags
    ]  # fmt: skip
    row[q] = 0.0
    return np.array(row)


def test_equal_documents_come_in_ascending_order(medium):
    _, index, _ = medium
    documents, scores = index.neighbours(np.array([99, 120]), 40)
    assert documents[0].tolist() == list(range(100, 140))
    assert documents[1].tolist() == [*range(99, 120), *range(121, 140)]
    assert len(set(scores.ravel().tolist())) == 1


@pytest.mark.parametrize("n", [16, 600])
@pytest.mark.parametrize("seed", range(3))
def test_scores_that_differ_only_by_rounding(n, seed):
    """Each document has one of two words of the same weight, 12 times: all sums are equal but for the order of their terms.

    float32 then ranks at random, float64 decides, and many documents tie: with 600 of them the batch cannot be proved exact.
    """
    rng = np.random.default_rng(seed)
    half = rng.integers(0, 2, (n // 2, 12))
    choices = np.concatenate([half, 1 - half])
    texts = [
        b" ".join(b"pair%d_%d" % (i, side) for i, side in enumerate(row) for _ in range(1 + i % 3)) for row in choices
    ]
    query = b" ".join(b"pair%d_%d" % (i, side) for i in range(12) for side in (0, 1) for _ in range(2 * i + 1))
    index = build([*texts, query])
    scores = canonical(index)
    assert 1 < len(set(scores[n, :n].tolist())) < n
    check_neighbours(index, scores, 20, queries=np.full(40, n))  # 40 make a batch


def test_best_unused_on_the_medium_corpus(medium):
    _, index, scores = medium
    rng = np.random.default_rng(1)
    for share in (0.005, 0.1, 0.5, 1.0):
        for query in rng.integers(0, 2500, 10):
            unused = rng.random(2500) < share
            documents, found = index.best_unused(int(query), 8, unused)
            expected = ranking(np.where(unused, scores[query], 0), 8)
            assert documents.tolist() == expected
            assert found.tolist() == scores[query, expected].tolist()


def test_subsets_of_the_medium_corpus_keep_every_bit(medium):
    _, index, scores = medium
    chosen = np.flatnonzero(np.random.default_rng(2).random(2500) < 0.3)
    check_neighbours(index.subset(chosen), scores[np.ix_(chosen, chosen)], 12)


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_and_chunks_change_no_bit(medium, threads):
    texts, index, _ = medium
    other = Bm25Index.build(chunks_of(texts, 5), Bm25Settings(), threads)
    for name, array in index._counts._asdict().items():
        assert (getattr(other._counts, name) == array).all(), name
    queries = np.arange(2500)[::-1].copy()
    for a, b in zip(index.neighbours(queries, 10, 1), other.neighbours(queries, 10, threads), strict=True):
        assert a.tobytes() == b.tobytes()


def test_small_blocks_change_no_bit(medium, monkeypatch):
    texts, index, _ = medium
    monkeypatch.setattr("splice.postings.block_bits", lambda n: 7)
    other = build(texts)
    for a, b in zip(index.neighbours(np.arange(2500), 25), other.neighbours(np.arange(2500), 25), strict=True):
        assert a.tobytes() == b.tobytes()


def test_many_small_counting_tasks_change_no_bit(medium, monkeypatch):
    texts, index, _ = medium
    monkeypatch.setattr("splice.postings.TASK_BYTES", 3000)
    for name, array in build(texts, threads=2)._counts._asdict().items():
        assert (getattr(index._counts, name) == array).all(), name


def test_more_than_65536_documents():
    rng = np.random.default_rng(3)
    n = 70_000
    texts = [b"g%d h%d all" % pair for pair in zip(rng.integers(0, 3000, n), rng.integers(0, 30, n), strict=True)]
    index = build(texts)
    queries = np.array([0, 65_535, 65_536, 69_999, *rng.integers(0, n, 40)])
    documents, found = index.neighbours(queries, 30)
    for i, q in enumerate(queries):
        scores = index.pair_scores(np.full(n, q), np.arange(n))
        scores[q] = 0
        assert documents[i].tolist() == ranking(scores, 30)
        assert found[i].tolist() == scores[documents[i]].tolist()
        if i < 3:
            np.testing.assert_allclose(scores, brute_force_row(texts, q), rtol=1e-12)
        assert index.best_unused(int(q), 30, np.ones(n, bool))[0].tolist() == documents[i].tolist()


def test_scores_are_rank_bm25s_with_our_idf():
    texts = zipf_texts(120, 300, seed=4)
    tokenised = [text.decode().split() for text in texts]
    peer = BM25Okapi(tokenised, k1=1.2, b=0.6)
    dfs = Counter(term for document in tokenised for term in set(document))
    peer.idf = {t: math.log(1 + (120 - df + 0.5) / (df + 0.5)) for t, df in dfs.items()}
    index = build(texts, k1=1.2, b=0.6)
    others = np.arange(1, 120)
    np.testing.assert_allclose(
        index.pair_scores(np.zeros(119, int), others), peer.get_scores(tokenised[0])[1:], rtol=1e-12
    )


def test_saved_and_loaded_is_the_same(medium, tmp_path):
    _, index, scores = medium
    index.save(tmp_path / "a")
    index.save(tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    loaded = Bm25Index.load(tmp_path / "a")
    assert loaded.settings == index.settings
    check_neighbours(loaded, scores, 10, queries=np.arange(0, 2500, 50))
    check_neighbours(loaded.subset(np.arange(500)), scores[:500, :500], 10)


def test_a_saved_subset_keeps_the_scores_of_the_whole(medium, tmp_path):
    _, index, scores = medium
    index.subset(np.arange(300)).save(tmp_path)
    check_neighbours(Bm25Index.load(tmp_path), scores[:300, :300], 6)


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "not json"])
def test_a_damaged_index_is_refused(tmp_path, damage):
    build([b"aa bb", b"bb cc", b"aa cc"] * 10).save(tmp_path)
    path = tmp_path / ("index.json" if damage == "not json" else "terms.npy")
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": raw[:-3], "flipped": raw[:-8] + b"\xff" * 8, "not json": b"{"}[damage])
    with pytest.raises(SpliceError, match=rf"{path.name}.*remove .* and build again"):
        Bm25Index.load(tmp_path)


def test_an_index_without_some_array_is_refused(tmp_path):
    build([b"aa bb", b"bb cc"]).save(tmp_path)
    path = tmp_path / "index.json"
    facts = json.loads(path.read_text())
    del facts["checksums"]["tfs"]
    path.write_text(json.dumps(facts))
    with pytest.raises(SpliceError, match=r"index.json"):
        Bm25Index.load(tmp_path)


@pytest.mark.parametrize("texts", [[], [b""], [b"aa"], [b"", b""], [b"aa", b"bb"], [b"aa bb aa", b""]])
def test_small_and_empty_corpora(texts, tmp_path):
    index = build(texts, threads=2)
    n = len(texts)
    assert index.n_documents == n
    documents, scores = index.neighbours(np.arange(n), 3, threads=2)
    assert (documents == -1).all()
    assert (scores == 0).all()
    if n:
        assert len(index.best_unused(0, 2, np.ones(n, bool))[0]) == 0
    index.subset(np.arange(n)).save(tmp_path)
    assert Bm25Index.load(tmp_path).n_documents == n


def test_no_chunks_and_no_queries():
    assert Bm25Index.build([], Bm25Settings()).n_documents == 0
    index = build([b"aa", b"aa"])
    assert index.neighbours(np.array([], int), 3)[0].shape == (0, 3)
    assert index.neighbours(np.array([1]), 0)[0].shape == (1, 0)
    assert index.neighbours(np.array([0]), 4)[0].tolist() == [[1, -1, -1, -1]]


def test_counts_beyond_16_bits():
    texts = [b"aa " * 70_000 + b"bb", b"aa bb", b"bb " * 3]
    index = build(texts)
    expected = brute_force(texts)
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(canonical(index), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k1": -0.1}, "k1 is -0.1"),
        ({"k1": math.nan}, "k1"),
        ({"b": 1.1}, "b is 1.1"),
        ({"max_df": 0.0}, "max_df is 0.0"),
        ({"max_df": 1.5}, "max_df"),
        ({"query_tf": "log"}, "query_tf is 'log'"),
    ],
)
def test_bad_settings_are_refused(options, match):
    with pytest.raises(SpliceError, match=match):
        Bm25Settings(**options)
