"""Words of raw UTF-8 bytes, and how often each occurs in a document: the tokeniser of the BM25 engine.

A word is a run of two or more of [A-Za-z0-9_] or bytes >= 128, with ASCII letters lower-cased. On real text that is what the
regex `(?u)\\b\\w\\w+\\b` finds, without decoding: every character beyond ASCII counts as a letter. A word is known by a 64-bit hash
of its bytes; among a million different words two share a hash with a probability of 3e-8.

Notation: N documents, texts as Arrow's binary layout (data uint8 [bytes], offsets [N + 1]), zero-copy.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FNV_OFFSET = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)
MIX = np.uint64(0xFF51AFD7ED558CCD)  # murmur3's finaliser
FIRST_TABLE = 1024  # slots of a document's first hash table: 4 KB, in the first-level cache


def _letters() -> np.ndarray:
    """uint8 [256]: the lower-cased byte where it belongs to a word, else 0."""
    table = np.zeros(256, np.uint8)
    for byte in range(256):
        if byte >= 128 or chr(byte).isalnum() or byte == ord("_"):
            table[byte] = ord(chr(byte).lower()) if byte < 128 else byte
    return table


LETTERS = _letters()


@njit(cache=True, nogil=True)
def mixed(h: np.uint64) -> np.uint64:
    h = (h ^ (h >> np.uint64(33))) * MIX
    return h ^ (h >> np.uint64(29))


@njit(cache=True, nogil=True)
def _word_hashes(data: np.ndarray, out: np.ndarray) -> int:
    n = 0
    h = FNV_OFFSET
    length = 0
    for i in range(data.size + 1):
        letter = LETTERS[data[i]] if i < data.size else np.uint8(0)
        if letter:
            h = (h ^ np.uint64(letter)) * FNV_PRIME
            length += 1
        elif length:
            if length > 1:
                out[n] = mixed(h)
                n += 1
            h = FNV_OFFSET
            length = 0
    return n


def word_hashes(text: bytes | np.ndarray) -> np.ndarray:
    """uint64 [words]: the hash of every word of one text, in order, repeats included."""
    data = np.frombuffer(text, np.uint8) if isinstance(text, bytes) else text
    data = data.view()
    data.setflags(write=False)
    out = np.empty((data.size + 1) // 3 + 1, np.uint64)
    return out[: _word_hashes(data, out)].copy()


def words(text: bytes) -> list[bytes]:
    """The words themselves, in order: the definition in plain Python, for tests and for people."""
    spaced = text.translate(bytes(LETTERS).replace(b"\0", b" "))
    return [word for word in spaced.split(b" ") if len(word) > 1]


@njit(cache=True, nogil=True)
def _count(
    data: np.ndarray, offsets: np.ndarray, table: np.ndarray,
    hashes: np.ndarray, tfs: np.ndarray, distinct: np.ndarray, lengths: np.ndarray,
) -> int:  # fmt: skip
    """Fill the outputs of `count_words`; give the number of entries. table, scratch: a power of two, four times the different words."""
    n = 0  # entries so far
    for d in range(offsets.size - 1):
        first = n
        total = 0
        size = FIRST_TABLE
        table[:size] = 0
        mask = np.uint64(size - 1)
        h = FNV_OFFSET
        length = 0
        end = offsets[d + 1]
        for i in range(offsets[d], end + 1):
            letter = LETTERS[data[i]] if i < end else np.uint8(0)
            if letter:
                h = (h ^ np.uint64(letter)) * FNV_PRIME
                length += 1
                continue
            if length > 1:
                total += 1
                h = mixed(h)
                slot = h & mask
                while True:
                    entry = table[slot]
                    if entry == 0:  # a word not seen in this document yet
                        hashes[n] = h
                        tfs[n] = 1
                        n += 1
                        table[slot] = n - first
                        if 2 * (n - first) > size:  # keep the table at most half full
                            size *= 2
                            mask = np.uint64(size - 1)
                            table[:size] = 0
                            for j in range(first, n):
                                slot = hashes[j] & mask
                                while table[slot] != 0:
                                    slot = (slot + np.uint64(1)) & mask
                                table[slot] = j - first + 1
                        break
                    if hashes[first + entry - 1] == h:
                        tfs[first + entry - 1] += 1
                        break
                    slot = (slot + np.uint64(1)) & mask
            if length:
                h = FNV_OFFSET
                length = 0
        distinct[d] = n - first
        lengths[d] = total
    return n


def count_words(data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Count the words of each document of a chunk, without the GIL.

    Args: data uint8 [bytes]; offsets int32 or int64 [n + 1] into it (the first need not be 0).
    Gives: hashes uint64 [entries] and tfs uint32 [entries], one entry for each different word of each document, documents in order;
    distinct int32 [n] entries of each document; lengths int32 [n] words of each document.
    """
    data, offsets = (
        data.view(),
        offsets.astype(np.int64),
    )  # one compiled version for all that callers may have
    data.setflags(write=False)
    n = offsets.size - 1
    sizes = np.diff(offsets)
    most = int(sizes.max(initial=0)) // 3 + 1  # a word and its separator take three bytes
    table = np.empty(max(FIRST_TABLE, 1 << (2 * most + 2).bit_length()), np.int32)
    bound = int(sizes.sum()) // 3 + n
    hashes, tfs = np.empty(bound, np.uint64), np.empty(bound, np.uint32)
    distinct, lengths = np.empty(n, np.int32), np.empty(n, np.int32)
    used = _count(data, offsets, table, hashes, tfs, distinct, lengths)
    return hashes[:used].copy(), tfs[:used].copy(), distinct, lengths
