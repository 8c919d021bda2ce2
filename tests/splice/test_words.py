"""The byte tokeniser against regular expressions."""

import re
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from splice.words import count_words, word_hashes, words

BYTES_WORD = re.compile(rb"[A-Za-z0-9_\x80-\xff]{2,}")
UNICODE_WORD = re.compile(r"(?u)\b\w\w+\b")


def hash_of(word: bytes) -> int:
    (value,) = word_hashes(word)
    return int(value)


def chunk(texts: list[bytes], skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Arrow's binary layout, the first document starting after `skip` bytes of another's."""
    data = np.frombuffer(b"x" * skip + b"".join(texts) + b"tail", np.uint8)
    return data, skip + np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)


@given(st.binary(max_size=200))
def test_words_are_runs_of_two_or_more_word_bytes(text):
    assert words(text) == BYTES_WORD.findall(bytes(b + 32 if 65 <= b <= 90 else b for b in text))


@given(st.text(st.characters(max_codepoint=127), max_size=200))
def test_words_of_ascii_text_are_those_of_the_unicode_regex(text):
    assert [word.decode() for word in words(text.encode())] == UNICODE_WORD.findall(text.lower())


def test_real_text_beyond_ascii_splits_like_the_unicode_regex():
    text = "Der Name steht für Übermaß; naïve café résumé, Привет мир. 日本語 テキスト foo_bar x y2 -- 10 000 élan"
    found = [word.decode() for word in words(text.encode())]
    assert found == [re.sub("[A-Z]", lambda m: m[0].lower(), word) for word in UNICODE_WORD.findall(text)]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_hashes_follow_the_words(text):
    assert word_hashes(text).tolist() == [hash_of(word) for word in words(text)]


def test_different_words_have_different_hashes():
    many = b" ".join(b"w%d" % i for i in range(200_000))
    assert len(np.unique(word_hashes(many))) == 200_000


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(0, 5), st.sampled_from([np.int32, np.int64]))
def test_counts_of_every_document(texts, skip, dtype):
    data, offsets = chunk(texts, skip)
    hashes, tfs, distinct, lengths = count_words(data, offsets.astype(dtype))
    assert len(distinct) == len(lengths) == len(texts)
    at = 0
    for i, text in enumerate(texts):
        entries = slice(at, at + int(distinct[i]))
        at = entries.stop
        expected = Counter(hash_of(word) for word in words(text))
        assert dict(zip(hashes[entries].tolist(), tfs[entries].tolist(), strict=True)) == expected
        assert lengths[i] == expected.total()
    assert at == len(hashes)


def test_a_document_of_more_different_words_than_the_first_table_holds():
    text = b" ".join(b"word%d" % (i % 5000) for i in range(15_000))
    hashes, tfs, distinct, lengths = count_words(*chunk([b"aa bb", text, b"aa"]))
    assert distinct.tolist() == [2, 5000, 1]
    assert lengths.tolist() == [2, 15_000, 1]
    assert set(tfs[2:5002].tolist()) == {3}
    assert len(set(hashes[2:5002].tolist())) == 5000
