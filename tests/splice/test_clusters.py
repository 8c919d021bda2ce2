"""Clusters: vectors against plain Python, centroids against numpy, topics found again, and the same on every cut and thread."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from splice.clusters import BUCKET_SHIFT, RAREST, Clusters, D, _in_order, _second_eigenvector, _vectors, _weights
from splice.errors import SpliceError
from splice.words import count_words, word_hashes, words


def arrow(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


def about(topics: list[int], length: int, seed: int, fields: int = 1) -> list[bytes]:
    """A document for each topic: half its words are everybody's, half the topic's or, with several fields, the field's."""
    rng = random.Random(seed)
    texts = []
    for topic in topics:
        field = f"field{topic % fields}_{{}}" if fields > 1 else f"topic{topic}_{{}}"
        choice = [*(f"common_{i}" for i in range(40)), *(f"topic{topic}_{i}" for i in range(20)), *(field.format(i) for i in range(20))]  # fmt: skip
        texts.append(" ".join(rng.choice(choice) for _ in range(length)).encode())
    return texts


TOPICS = random.Random(5).choices(range(8), k=400)


@pytest.fixture(scope="module")
def trained() -> Clusters:
    return Clusters.train([arrow(about(TOPICS, 120, 1))], 24)


def test_documents_of_a_topic_that_were_not_in_the_sample_go_to_its_clusters(trained):
    topics = random.Random(6).choices(range(8), k=300)
    cluster = trained.nearest(*arrow(about(topics, 120, 2)))
    owners = {c: Counter(t for t, mine in zip(topics, cluster.tolist(), strict=True) if mine == c) for c in set(cluster.tolist())}  # fmt: skip
    assert len(owners) > 8
    assert sum(owner.most_common(1)[0][1] for owner in owners.values()) >= 0.99 * len(topics)


def test_vectors_are_bm25_weights_hashed_with_signs():
    texts = [*about(TOPICS[:30], 60, 3), b"", b"?? !", b"once_only_here"]
    data, offsets = arrow(texts)
    count = count_words(data, offsets)
    weights, average = _weights([count])
    vectors = _vectors(count, weights, average)
    df = Counter(word for text in texts for word in set(words(text)))
    assert average == sum(len(words(text)) for text in texts) / len(texts)
    for d, text in enumerate(texts):
        expected, squares = (
            np.zeros(D),
            0.0,
        )  # two words of one place are added after the length was taken of each alone
        for word, tf in Counter(words(text)).items():
            if df[word] < max(2, len(texts) / RAREST):
                continue
            (h,) = word_hashes(word).tolist()
            idf = math.log(1 + (len(texts) - df[word] + 0.5) / (df[word] + 0.5))
            value = idf * tf * 2.5 / (tf + 1.5 * (0.25 + 0.75 * len(words(text)) / average))
            expected[h % D] += -value if h >> 20 & 1 else value
            squares += value**2
        entries = slice(*vectors.ends[d : d + 2])
        found = np.zeros(D)
        np.add.at(found, vectors.places[entries], vectors.values[entries])
        np.testing.assert_allclose(found, expected / math.sqrt(squares or 1.0), rtol=1e-5, atol=1e-6)


def test_a_document_goes_to_the_centroid_of_the_largest_cosine(trained):
    data, offsets = arrow([*about(TOPICS[:50], 80, 4), b"nothing known"])
    vectors = _vectors(count_words(data, offsets), trained.weights, trained.average)
    dense = np.zeros((51, D))
    for d in range(51):
        entries = slice(*vectors.ends[d : d + 2])
        np.add.at(dense[d], vectors.places[entries], vectors.values[entries])
    cosines = dense @ trained.centroids
    cluster = trained.nearest(data, offsets)
    chosen = cosines[np.arange(51), cluster]
    np.testing.assert_allclose(chosen, cosines.max(axis=1), atol=1e-5)
    assert (chosen[:50] > np.median(cosines[:50], axis=1) + 0.1).all()
    assert cluster[50] == 0
    np.testing.assert_allclose(np.sqrt((trained.centroids.astype(float) ** 2).sum(axis=0)), 1, rtol=1e-5)


def test_centroids_are_the_means_of_their_documents(trained):
    """k-means has come to rest on so clear a sample: a centroid is the direction of the sum of the documents nearest to it."""
    data, offsets = arrow(about(TOPICS, 120, 1))
    vectors = _vectors(count_words(data, offsets), trained.weights, trained.average)
    sums = np.zeros((D, trained.centroids.shape[1]))
    document = np.repeat(np.arange(len(TOPICS)), np.diff(vectors.ends))
    np.add.at(sums, (vectors.places, trained.nearest(data, offsets)[document]), vectors.values)
    np.testing.assert_allclose(sums / np.sqrt((sums**2).sum(axis=0)), trained.centroids, atol=1e-5)


def test_neither_threads_nor_the_cut_into_chunks_change_a_bit(trained):
    texts = about(TOPICS, 120, 1)
    for cut, threads in ((1, 1), (7, 2), (150, 5)):
        again = Clusters.train([arrow(texts[i : i + cut]) for i in range(0, len(texts), cut)], 24, threads)
        np.testing.assert_array_equal(again.centroids, trained.centroids)
        np.testing.assert_array_equal(again.weights, trained.weights)
        assert again.average == trained.average


def test_clusters_of_one_field_have_consecutive_numbers():
    """Twelve topics of four fields: documents in the order of their clusters change their field three times."""
    topics = random.Random(7).choices(range(12), k=600)
    texts = about(topics, 150, 8, fields=4)
    cluster = Clusters.train([arrow(texts)], 12).nearest(*arrow(texts))
    majority = [Counter(t % 4 for t, c in zip(topics, cluster.tolist(), strict=True) if c == k).most_common(1)[0][0]
                for k in range(cluster.max() + 1)]  # fmt: skip
    assert sum(a != b for a, b in zip(majority[1:], majority, strict=False)) == 3


def test_the_sequence_is_cut_where_the_least_is_in_common():
    """Two groups of clusters that share nothing, their numbers mixed, and one cluster as large as all others together."""
    sums = np.zeros((D, 8), np.float32)
    for c in range(8):
        sums[c % 2], sums[10 + c] = np.eye(8, dtype=np.float32)[c] + sums[c % 2], 0.1 * np.eye(8)[c]
    order = _in_order(sums, np.full(8, 10))
    assert sorted(order.tolist()) == list(range(8))
    assert sum(a % 2 != b % 2 for a, b in zip(order[1:].tolist(), order.tolist(), strict=False)) == 1


def test_second_eigenvector_of_a_path():
    """Of a chain of unlike weights numpy agrees with the power iteration, up to scale and sign."""
    chain = np.zeros((7, 7))
    for i, weight in enumerate((3.0, 2.0, 1.0, 0.5, 2.0, 3.0)):
        chain[i, i + 1] = chain[i + 1, i] = weight
    root = np.sqrt(chain.sum(axis=0))
    _, vectors = np.linalg.eigh(chain / np.outer(root, root))
    expected = vectors[:, -2] / root
    found = _second_eigenvector(chain)
    assert abs(np.corrcoef(found, expected)[0, 1]) > 0.999
    assert (
        abs((found * root**2).sum()) < 1e-9
    )  # nothing is left of the first, which would drown it where it is far smaller


@pytest.mark.parametrize("texts", [[], [b""], [b"", b"?"], [b"every word but once"]])
def test_a_sample_without_words_in_common_gives_one_cluster(texts):
    clusters = Clusters.train([arrow(texts)] if texts else [], 10)
    assert clusters.centroids.shape == (D, 1)
    assert clusters.nearest(*arrow([b"some words", b""])).tolist() == [0, 0]


def test_there_are_no_more_clusters_than_documents():
    texts = about([0, 1, 2, 3, 4], 100, 9)
    clusters = Clusters.train([arrow(texts)], 50)
    assert clusters.centroids.shape == (D, 5)
    assert sorted(clusters.nearest(*arrow(texts)).tolist()) == [0, 1, 2, 3, 4]


def test_words_are_weighed_by_how_rare_they_are():
    texts = [b"always %d" % (i % 10 + 100) for i in range(100)] + [b"often always"] * 50
    weights, _ = _weights([count_words(*arrow(texts))])
    always, often, hundred = (weights[int(word_hashes(w)[0] >> BUCKET_SHIFT)] for w in (b"always", b"often", b"100"))
    assert 0 < always < often < hundred
    assert hundred == np.float32(math.log(1 + 140.5 / 10.5))


def test_clusters_are_read_as_they_were_written(trained, tmp_path):
    path = tmp_path / "assign" / "clusters.npz"
    path.parent.mkdir()
    trained.save(path)
    again = Clusters.load(path)
    data, offsets = arrow(about(TOPICS, 50, 10))
    np.testing.assert_array_equal(again.nearest(data, offsets), trained.nearest(data, offsets))
    written = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == written
    for broken in (None, b"", written[:-500], b"x" * 100):
        path.unlink()
        if broken is not None:
            path.write_bytes(broken)
        with pytest.raises(SpliceError, match=rf"clusters\.npz: missing or damaged .* remove {tmp_path} and build again"):  # fmt: skip
            Clusters.load(path)
        path.touch()
