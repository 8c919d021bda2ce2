"""What turns text into ids: the two references that define them, and gigatoken, which may stand in for either."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from .errors import SpliceError

# Documents' ids, uint32 [T], and offsets, int64 [n + 1]: document i is ids[offsets[i] : offsets[i + 1]].
Ids = tuple[np.ndarray, np.ndarray]

REFERENCE_GROUP_BYTES = 2 << 20  # a reference's result is Python objects, some hundred bytes a token
# gigatoken keeps every word it has met: 50 MB after 338 MB of C, but 6 bytes a byte of random letters. A fresh one costs 0.1 s.
RENEW_BYTES = 1 << 30


class Reference(Protocol):
    library: str

    def encode(self, texts: list[str], threads: int) -> list[list[int]]: ...

    def decode(self, ids: list[int]) -> str: ...


class TokenizersReference:
    library = "tokenizers"

    def __init__(self, config: dict[str, Any]) -> None:
        from tokenizers import Tokenizer as Reference

        self.tokenizer = Reference.from_str(json.dumps(config, ensure_ascii=False))
        self.tokenizer.encode_special_tokens = True  # as text, that is: the reverse of what the name suggests

    def encode(self, texts: list[str], threads: int) -> list[list[int]]:
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)


class SentencePieceReference:
    library = "sentencepiece"

    def __init__(self, data: bytes) -> None:
        from sentencepiece import SentencePieceProcessor

        self.processor = SentencePieceProcessor(model_proto=data)

    def encode(self, texts: list[str], threads: int) -> list[list[int]]:
        return self.processor.encode(texts, num_threads=threads)

    def decode(self, ids: list[int]) -> str:
        return self.processor.decode(ids)


class Gigatoken:
    """gigatoken on documents in one buffer. One call at a time: it locks itself anyway, and two pools are slower than one."""

    def __init__(self, tokenizer_json: str) -> None:
        self._json = tokenizer_json
        self._lock = threading.Lock()
        self._seen_bytes = 0
        self._load()

    def _load(self) -> None:
        from gigatoken import Tokenizer as Fast

        self._tokenizer = Fast.from_json(self._json)
        self._seen_bytes = 0

    def encode(self, data: np.ndarray, offsets: np.ndarray, threads: int) -> Ids:
        import awkward as ak

        documents = ak.contents.ListOffsetArray(
            ak.index.Index64(offsets),
            ak.contents.NumpyArray(data, parameters={"__array__": "byte"}),
            parameters={"__array__": "bytestring"},
        )
        with self._lock:
            if self._seen_bytes > RENEW_BYTES:
                self._load()
            self._seen_bytes += len(data)
            # None: its own pool, unless this process was forked, where the pool's threads are missing and it would hang.
            layout = self._tokenizer.encode_batch(ak.Array(documents), parallel=None if threads > 1 else False).layout
        return np.asarray(layout.content.data, np.uint32), np.asarray(layout.offsets.data, np.int64)


def encode_by_reference(reference: Reference, texts: Sequence[bytes | memoryview | np.ndarray], threads: int) -> Ids:
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    parts, lengths = [], [0]
    for i, j in groups(offsets, REFERENCE_GROUP_BYTES):
        lists = reference.encode([_to_str(text) for text in texts[i:j]], threads)
        lengths += map(len, lists)
        parts.append(np.fromiter(chain.from_iterable(lists), np.uint32, sum(map(len, lists))))
    return concatenate(parts), np.cumsum(lengths, dtype=np.int64)


def _to_str(text: bytes | memoryview | np.ndarray) -> str:
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise SpliceError(
            f"a document cannot be tokenised: it is not UTF-8 at byte {error.start}; set such documents aside at the source"
        ) from error


def groups(offsets: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Ranges i, j of documents that hold at most `size` bytes together, or one document that holds more."""
    i, n = 0, len(offsets) - 1
    while i < n:
        j = max(i + 1, int(np.searchsorted(offsets, offsets[i] + size, side="right")) - 1)
        yield i, j
        i = j


def concatenate(parts: list[np.ndarray]) -> np.ndarray:
    """The parts in one array; each is let go once copied, so that they and the array never lie in memory whole together.

    From the last to the first, since an allocator gives back the end of its heap.
    """
    if len(parts) == 1:
        return parts.pop()
    end = sum(map(len, parts))
    out = np.empty(end, np.uint32)
    while parts:
        part = parts.pop()
        out[end - len(part) : end] = part
        end -= len(part)
    return out


def reason_of(error: BaseException) -> str:
    """One line of a library's error. A panic of a Rust library is no Exception; an interrupt is not the library's."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
