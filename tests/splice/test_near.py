"""Near-duplicates against all-pairs Jaccard, n-grams against Python's own, and evaluation files of every kind."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from splice.contamination import Contamination
from splice.errors import SpliceError
from splice.near import PERMUTATIONS, first_of_cluster, rows_of_a_band, shingles, signatures
from splice.words import words


def arrow(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


def literal_shingles(text: bytes, size: int) -> list[tuple[bytes, ...]]:
    found = words(text)
    return [tuple(found[i : i + size]) for i in range(len(found) - size + 1)] or ([tuple(found)] if found else [])


@given(st.lists(st.text(alphabet="ab _é.\n", max_size=40).map(str.encode), max_size=6), st.integers(1, 4))
def test_shingles_are_equal_where_their_words_are(texts, size):
    hashes, ends = shingles(*arrow(texts), size)
    literal = [literal_shingles(text, size) for text in texts]
    assert np.diff(ends).tolist() == [len(found) for found in literal]
    names: dict[int, tuple[bytes, ...]] = {}
    for h, name in zip(hashes.tolist(), (name for found in literal for name in found), strict=True):
        assert names.setdefault(h, name) == name
    assert len(set(names.values())) == len(names)


def test_what_is_written_without_spaces_has_words_too():
    """Each character is one; punctuation is none, and ends a word."""
    texts = ["你好世界，今天天气很好。", "今天 天气", "abc今天xyz天气", "안녕하세요 여러분"]
    assert np.diff(shingles(*arrow([text.encode() for text in texts]), 1)[1]).tolist() == [10, 4, 6, 8]
    h, ends = shingles(*arrow([text.encode() for text in texts]), 4)
    assert set(h[ends[1] : ends[2]].tolist()) <= set(h[: ends[1]].tolist())
    long = np.concatenate([shingles(*arrow(["ab今".encode() * n]), 1)[0] for n in (1, 1000)])
    assert len(long) == 2002


def test_offsets_need_not_begin_at_nought():
    data, offsets = arrow([b"skipped words", b"one two three", b"four five"])
    hashes, ends = shingles(data, offsets[1:], 2)
    expected, expected_ends = shingles(*arrow([b"one two three", b"four five"]), 2)
    assert hashes.tolist() == expected.tolist()
    assert ends.tolist() == expected_ends.tolist()


def corpus(n: int = 240, seed: int = 0) -> list[bytes]:
    """Documents of 200 words; every third is an earlier one with a share of its words replaced."""
    rng = random.Random(seed)
    texts: list[list[str]] = []
    for i in range(n):
        if i % 3 == 2:
            text = list(texts[rng.randrange(len(texts))])
            for _ in range(rng.choice([0, 1, 2, 4, 8, 30])):
                text[rng.randrange(len(text))] = f"new{rng.randrange(10**6)}"
        else:
            text = [f"word{rng.randrange(5000)}" for _ in range(200)]
        texts.append(text)
    return [" ".join(text).encode() for text in texts]


def jaccard(texts: list[bytes], size: int) -> np.ndarray:
    sets = [set(literal_shingles(text, size)) for text in texts]
    return np.array([[len(a & b) / len(a | b) if a | b else 0.0 for b in sets] for a in sets])


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_clusters_are_those_of_all_pairs(threshold):
    texts = corpus()
    table = signatures(*arrow(texts), 5)
    first = first_of_cluster([table[:100], table[100:101], table[101:]], np.ones(len(texts), bool), threshold)
    exact = jaccard(texts, 5)
    # An estimate by 128 entries is off by 0.04 (a standard deviation); what is farther from the threshold must be right.
    surely, possibly = exact >= min(1.0, threshold + 0.12), exact >= threshold - 0.15
    for i in range(len(texts)):
        assert first[i] <= i
        assert first[first[i]] == first[i]
        for j in np.flatnonzero(surely[i]):
            assert first[i] == first[j], (i, j, exact[i, j])
    groups: dict[int, list[int]] = {}
    for i, f in enumerate(first.tolist()):
        groups.setdefault(f, []).append(i)
    for members in groups.values():
        for i in members[1:]:
            assert any(possibly[i, j] for j in members if j != i)
    assert 10 < sum(len(m) - 1 for m in groups.values()) < 80


def test_documents_left_out_and_documents_without_a_word_are_like_nobody():
    texts = [b"", b"", b"a few words here", b"a few words here", b"a few words here", b"? ! ."]
    table = signatures(*arrow(texts), 5)
    assert (table[0] == 2**32 - 1).all()
    kept = np.array([True, True, False, True, True, True])
    assert first_of_cluster([table], kept, 0.8).tolist() == [0, 1, 2, 3, 3, 5]


def test_a_signature_depends_on_the_document_alone():
    texts = corpus(30)
    alone = np.concatenate([signatures(*arrow([text]), 5) for text in texts])
    assert np.array_equal(alone, signatures(*arrow(texts), 5))
    assert alone.shape == (30, PERMUTATIONS)


def test_bands_find_pairs_at_the_threshold():
    for threshold in (0.1, 0.3, 0.5, 0.8, 0.9, 1.0):
        rows = rows_of_a_band(threshold)
        assert rows == 1 or 1 - (1 - threshold**rows) ** (PERMUTATIONS // rows) >= 0.97
    assert rows_of_a_band(0.5) < rows_of_a_band(0.8) < rows_of_a_band(0.95)


QUESTION = "The quick brown fox jumps over the lazy dog while seven wizards quietly watch the moon"


@pytest.fixture
def evaluation(tmp_path):
    """The same question in files of every kind."""
    row = json.dumps({"id": "x1", "turns": [{"question": QUESTION}], "n": 3})
    (tmp_path / "a.jsonl").write_text(f"{row}\n\n{row}\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(row.encode()))
    pq.write_table(pa.table({"choices": [["a", QUESTION]]}), tmp_path / "g.parquet")
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(row.encode()))
    (tmp_path / "d.json").write_text(json.dumps([QUESTION, {"deep": ["other text"]}]))
    (tmp_path / "e.txt").write_text(QUESTION)
    pq.write_table(pa.table({"n": [1], "question": [QUESTION]}), tmp_path / "f.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.json", "e.txt", "f.parquet", "g.parquet"])
def test_a_shared_ngram_is_found(evaluation, name):
    ngrams = Contamination.of_files([str(evaluation / name)], 13)
    ngrams.save(evaluation / "saved.npz")
    ngrams = Contamination.load(evaluation / "saved.npz")
    thirteen = " ".join(QUESTION.split()[2:15])
    assert len(words(thirteen.encode())) == 13
    assert ngrams.found_in(f"before it {thirteen.upper()}, and after".encode()) == str(evaluation / name)
    assert ngrams.found_in(thirteen.replace("seven", "eight").encode()) is None
    assert ngrams.found_in(" ".join(QUESTION.split()[2:14]).encode()) is None
    assert ngrams.found_in(b"") is None


def test_the_file_is_named_and_short_texts_count_as_a_whole(evaluation):
    (evaluation / "short.jsonl").write_text(json.dumps({"answer": "forty two"}) + "\n")
    ngrams = Contamination.of_files([str(evaluation / "e.txt"), str(evaluation / "short.jsonl")], 13)
    assert ngrams.found_in(QUESTION.encode()).endswith("/e.txt")
    assert ngrams.found_in(b"Forty-two").endswith("/short.jsonl")
    assert ngrams.note.startswith("1 of 2 texts to decontaminate by have at most --ngram-words 13 words")
    assert ngrams.found_in(b"it is forty two") is None  # words in a longer text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.txt", None, "cannot be read to decontaminate by"),
        ("bad.jsonl", b'{"a": "b c d"}\n{', "bad.jsonl:2: not JSON"),
        ("empty.json", b"[1, 2]", "holds no word to decontaminate by"),
        ("bad.jsonl.gz", b"no gzip", "cannot be read"),
        ("deep.jsonl", b"[" * 100_000, "deep.jsonl:1: not JSON"),
        ("bad.parquet", b"no parquet", "cannot be read"),
        ("bad.jsonl.zst", b"no zstd", "cannot be read"),
    ],
)
def test_an_evaluation_file_that_cannot_be_used_is_named(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SpliceError, match=said) as error:
        Contamination.of_files([str(tmp_path / name)], 13)
    assert name in str(error.value)
