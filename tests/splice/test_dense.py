"""Dense retrieval against brute-force inner products: lists, masks, subsets, inverted lists, files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splice.errors import SpliceError
from splice.graph import MaskedGraph

pytest.importorskip("faiss", reason="the extra `dense` is not installed")

from splice.dense import DenseIndex


def topics(n: int, d: int = 48, seed: int = 0, clusters: int = 40, scale: float = 1.0) -> np.ndarray:
    """float16 [n, d] in clusters, as embeddings of a corpus are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, d))
    return (scale * (centres[rng.integers(0, clusters, n)] + 0.4 * rng.normal(size=(n, d)))).astype(np.float16)


def inner_products(embeddings: np.ndarray) -> np.ndarray:
    """float64 [N, N], -inf for a document and itself."""
    x = embeddings.astype(np.float64)
    scores = x @ x.T
    np.fill_diagonal(scores, -np.inf)
    return scores


def ranking(scores: np.ndarray, k: int) -> list[int]:
    """The k highest of a row, ties by number."""
    return [d for d in sorted(range(len(scores)), key=lambda d: (-scores[d], d)) if scores[d] > -np.inf][:k]


def check(index: DenseIndex, embeddings: np.ndarray, m: int, threads: int = 1) -> None:
    n = len(embeddings)
    scores = inner_products(embeddings)
    documents, found = index.neighbours(np.arange(n), m, threads)
    assert documents.shape == found.shape == (n, m)
    assert documents.dtype == np.int32
    for q in range(n):
        expected = ranking(scores[q], m)
        assert documents[q].tolist() == expected + [-1] * (m - len(expected))
        np.testing.assert_allclose(found[q, : len(expected)], scores[q, expected], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("n", "m"), [(2, 5), (30, 29), (30, 40), (700, 8), (700, 32)])
def test_neighbours_are_those_of_brute_force(n, m, threads):
    embeddings = topics(n)
    check(DenseIndex.build(embeddings), embeddings, m, threads)


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_they_are_for_short_and_for_long_vectors(scale):
    embeddings = topics(400, scale=scale)
    check(DenseIndex.build(embeddings), embeddings, 10)


def test_many_equal_documents_come_in_their_order_however_many_there_are():
    embeddings = np.repeat(topics(12, clusters=12), 60, axis=0)[np.random.default_rng(1).permutation(720)]
    check(DenseIndex.build(embeddings), embeddings, 5)


def test_scores_closer_than_float32_tells_apart_are_told_apart():
    rng = np.random.default_rng(2)
    base = rng.normal(size=256).astype(np.float16)
    embeddings = np.tile(base, (500, 1))
    steps = rng.integers(-1, 2, embeddings.shape)  # one unit in the last place of float16, up or down
    small = np.abs(embeddings) < 0.1
    embeddings[small] = np.nextafter(embeddings, np.where(steps > 0, np.inf, -np.inf).astype(np.float16))[small]
    scores = inner_products(embeddings)
    spread = np.ptp(scores[0][1:])
    assert 0 < spread < np.abs(scores[0][1:]).max() * 2**-16
    index = DenseIndex.build(embeddings)
    check(index, embeddings, 4)
    for q in range(500):
        unused = rng.random(500) < 0.5
        assert index.best_unused(q, 3, unused)[0].tolist() == ranking(np.where(unused, scores[q], -np.inf), 3)


@settings(max_examples=60)
@given(st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=1, max_size=40), st.integers(1, 12))
def test_ties_go_by_number_and_any_score_is_a_neighbour(rows, m):
    embeddings = np.array(rows, np.float16)
    check(DenseIndex.build(embeddings), embeddings, m)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_unused_are_those_of_brute_force(seed):
    embeddings = topics(300, seed=seed)
    scores, index = inner_products(embeddings), DenseIndex.build(embeddings)
    rng = np.random.default_rng(seed)
    for _ in range(40):
        unused = rng.random(300) < rng.choice([0.01, 0.3, 1.0])
        q, k = int(rng.integers(300)), int(rng.integers(1, 6))
        expected = ranking(np.where(unused, scores[q], -np.inf), k)
        documents, found = index.best_unused(q, k, unused)
        assert documents.tolist() == expected
        assert found.tolist() == index.pair_scores(q, expected).tolist()


def test_scores_are_the_same_to_the_bit_whatever_is_asked():
    embeddings = topics(900, d=51)
    index = DenseIndex.build(embeddings)
    documents, scores = index.neighbours(np.arange(900), 16)
    some = np.sort(np.random.default_rng(0).permutation(900)[:500])
    subset = index.subset(some)
    assert subset.n_documents == 500
    left = np.isin(np.arange(900), some)
    for place in range(0, 500, 37):
        q = int(some[place])
        inside, found = subset.neighbours(np.array([place]), 16)
        exact, exact_scores = index.best_unused(q, 16, left)
        assert some[inside[0]].tolist() == exact.tolist()
        assert found[0].tolist() == exact_scores.tolist()
        assert scores[q].tolist() == index.pair_scores(q, documents[q]).tolist()
    alone = index.neighbours(np.array([7]), 16)
    assert alone[0].tolist() == documents[7:8].tolist()
    assert alone[1].tolist() == scores[7:8].tolist()


@pytest.mark.parametrize("m", [1, 3])
def test_retrieval_from_the_graph_is_masked_retrieval_of_the_whole(m):
    embeddings = topics(120)
    scores, index = inner_products(embeddings), DenseIndex.build(embeddings)
    neighbours, found = index.neighbours(np.arange(120), m)
    graph = MaskedGraph(neighbours, found, index, smallest_index=4)
    unused = np.ones(120, bool)
    for step, document in enumerate(np.random.default_rng(m).permutation(120).tolist()):
        graph.use(document)
        unused[document] = False
        graph.compact(lambda d=document: (d,), 2)
        expected = ranking(np.where(unused, scores[document], -np.inf), 2)
        assert [d for d, _ in graph.retrieve(document, 2)] == expected, step
    assert graph.fallbacks > 10


@pytest.fixture(scope="module")
def embeddings() -> np.ndarray:
    return topics(TestInvertedLists.n, clusters=300)


@pytest.fixture(scope="module")
def index(embeddings) -> DenseIndex:
    return DenseIndex.build(embeddings, flat_documents=1000)


class TestInvertedLists:
    """Above a pack's usual size: the lists are almost always the best, all else is exact."""

    n = 4000

    def test_most_neighbours_are_found_and_all_scores_are_exact(self, embeddings, index):
        flat = DenseIndex.build(embeddings)
        best, _ = flat.neighbours(np.arange(self.n), 10)
        documents, scores = index.neighbours(np.arange(self.n), 10)
        assert (documents >= 0).all()
        hits = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best.tolist(), documents.tolist(), strict=True)])
        assert hits > 0.9
        queries = np.repeat(np.arange(self.n), 10)
        assert scores.ravel().tolist() == flat.pair_scores(queries, documents.ravel()).tolist()
        assert (documents != np.arange(self.n)[:, None]).all()

    def test_threads_and_building_again_change_nothing(self, embeddings, index):
        again = DenseIndex.build(embeddings, flat_documents=1000)
        one, two = index.neighbours(np.arange(self.n), 10), again.neighbours(np.arange(self.n), 10, threads=2)
        assert all((a == b).all() for a, b in zip(one, two, strict=True))

    def test_a_list_is_full_where_the_clusters_probed_hold_too_few(self, embeddings, index):
        documents, _ = index.neighbours(np.arange(20), 2000)
        assert (documents >= 0).all()
        assert all(len(set(row)) == 2000 for row in documents.tolist())

    def test_they_are_kept(self, index, tmp_path):
        index.save(tmp_path / "index")
        loaded = DenseIndex.load(tmp_path / "index")
        one, two = index.neighbours(np.arange(300), 10), loaded.neighbours(np.arange(300), 10)
        assert all((a == b).all() for a, b in zip(one, two, strict=True))


def test_a_saved_index_is_the_same_and_its_bytes_are(tmp_path):
    embeddings = topics(200)
    index = DenseIndex.build(embeddings)
    for name in ("a", "b"):
        index.save(tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert sum(map(len, files.values())) < embeddings.nbytes + 1000  # two bytes a number
    check(DenseIndex.load(tmp_path / "a"), embeddings, 7)


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "format"])
def test_a_damaged_index_says_which_file_and_what_to_do(tmp_path, damage):
    DenseIndex.build(topics(50)).save(tmp_path)
    path = tmp_path / ("dense.json" if damage == "format" else "embeddings.npy")
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"\x11")
    else:
        path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(SpliceError, match=rf"{path.name}: .*(build again|link again)"):
        DenseIndex.load(tmp_path)


@pytest.mark.parametrize("flat_documents", [100, 10_000])
def test_a_gpu_gives_the_candidates_where_faiss_has_one(monkeypatch, flat_documents):
    """FAISS's own classes stand in for those of faiss-gpu, which have the same interface."""
    import faiss

    from splice import dense

    moved = []

    def to_gpu(resources: object, device: int, index: object) -> object:
        moved.append((resources, device))
        return index

    resources = object()
    monkeypatch.setattr(dense, "_gpu", lambda: resources)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", to_gpu, raising=False)
    monkeypatch.setattr(faiss, "knn", None)
    embeddings = topics(600)
    index = DenseIndex.build(embeddings, flat_documents)
    documents, _ = index.neighbours(np.arange(600), 12, threads=2)
    assert moved == [(resources, 0)]
    expected = np.array([ranking(row, 12) for row in inner_products(embeddings)])
    assert (documents == expected).mean() > (0.9 if flat_documents == 100 else 0.9999)


def test_one_document_has_no_neighbour():
    documents, scores = DenseIndex.build(topics(1)).neighbours(np.array([0]), 3)
    assert documents.tolist() == [[-1, -1, -1]]
    assert scores.tolist() == [[0, 0, 0]]
