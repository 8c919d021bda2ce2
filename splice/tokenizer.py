"""The language model's tokenizer: documents in, token ids out, fast where speed is proven to change nothing.

The reference is the library that defines the ids: `tokenizers` for a tokenizer.json, `sentencepiece` for a .model. gigatoken
gives the same ids 10 to 100 times as fast for most of them, but not for all. So at the start its ids are compared with the
reference's on some 470 probes and on a sample of the corpus, and it runs only where every id is equal; `backend` and
`backend_reason` say which one runs and why.

Ids are of the text alone: no BOS or EOS is added (the packer does), nothing is truncated or padded, and no text gives a
special token: a document that holds `</s>` has its letters, not the end of a document (tokenizer_special.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .errors import SpliceError
from .files import replacing
from .tokenizer_backend import Gigatoken, Ids, concatenate, encode_by_reference, groups, reason_of
from .tokenizer_files import HUB_DEFAULTS, Definition, find_tokenizer, read_definition
from .tokenizer_proof import cut_sample, first_difference, probes

GROUP_BYTES = 16 << 20


class Tokenizer:
    """A loaded tokenizer; make one with `load_tokenizer`. Safe to call from several threads.

    name            what the user gave, without directories
    vocab_size      every id is smaller
    bos_id, eos_id  None where the tokenizer has none
    pad_id          the tokenizer's pad token, else EOS, else 0
    unk_id          what stands for text the vocabulary cannot write; None where there is no such text
    backend         "gigatoken", "tokenizers" or "sentencepiece": the one that runs
    backend_reason  why that one
    fingerprint     sha256 of the tokenizer's file
    """

    def __init__(self, definition: Definition, fast: Gigatoken | None, watched: frozenset[int], reason: str) -> None:
        self.name = definition.name
        self.vocab_size = definition.vocab_size
        self.bos_id = definition.roles["bos"]
        self.eos_id = definition.roles["eos"]
        self.pad_id: int = next((i for i in (definition.roles["pad"], self.eos_id) if i is not None), 0)
        self.unk_id = definition.unk_id
        self.backend = "gigatoken" if fast else definition.reference.library
        self.backend_reason = reason
        self.fingerprint = hashlib.sha256(definition.data).hexdigest()
        self._definition = definition
        self._fast = fast
        self._watched = np.zeros(definition.vocab_size, bool)
        self._watched[list(watched)] = True
        self._watched_range = (min(watched), max(watched)) if watched else None

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size}, backend={self.backend!r})"

    def encode(self, texts: Sequence[bytes | memoryview], threads: int = 1) -> Ids:
        """UTF-8 documents to ids, uint32 [T], and offsets, int64 [n + 1]; the same for any number of threads.

        `threads` > 1 lets the library use its own pool (RAYON_NUM_THREADS sets its size). Text that is not UTF-8 must have
        been refused before: only the reference notices it.
        """
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return self._in_groups(offsets, lambda i, j: np.frombuffer(b"".join(texts[i:j]), np.uint8), threads)

    def encode_arrow(self, data: np.ndarray, offsets: np.ndarray, threads: int = 1) -> Ids:
        """`encode` of documents that lie in one buffer, as in an Arrow large_binary column, without a bytes object each.

        data: uint8; offsets: int64 [n + 1], document i is data[offsets[i] : offsets[i + 1]] (the first need not be 0).
        """
        return self._in_groups(np.asarray(offsets, np.int64), lambda i, j: data[offsets[i] : offsets[j]], threads)

    def encode_reference(self, texts: Sequence[bytes | memoryview], threads: int = 1) -> Ids:
        """`encode` by the reference, whichever backend runs. Raises SpliceError for text that is not UTF-8."""
        return encode_by_reference(self._definition.reference, texts, threads)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids, by the reference, without special tokens."""
        return self._definition.decode(ids)

    def require(self, join: str) -> None:
        """Raise SpliceError where documents are to be joined by "bos", "eos" or both and the tokenizer has no such token."""
        for role, token in (("bos", self.bos_id), ("eos", self.eos_id)):
            if role in join.lower() and token is None:
                raise SpliceError(
                    f"{self.name}: the tokenizer has no {role.upper()} token, which joining documents by {join!r} needs; name one "
                    f"in a tokenizer_config.json beside it ({role}_token) or join the documents otherwise"
                )

    def save(self, directory: Path) -> None:
        """The tokenizer as a directory that `load_tokenizer` and transformers load; the same bytes each time."""
        definition = self._definition
        _write(directory / definition.filename, definition.data)
        if definition.filename == "tokenizer.json":
            _write(directory / "tokenizer_config.json", _to_json(definition.hub_config()))

    def _in_groups(self, offsets: np.ndarray, data_of: Callable[[int, int], np.ndarray], threads: int) -> Ids:
        """Encode documents i to j at a time, `data_of(i, j)` their bytes, so that what is held beside the ids is bounded."""
        encode = self._encode_fast if self._fast else self._encode_slow
        parts, lengths = [], [np.zeros(1, np.int64)]
        for i, j in groups(offsets, GROUP_BYTES):
            ids, ends = encode(data_of(i, j), offsets[i : j + 1] - offsets[i], threads)
            parts.append(ids)
            lengths.append(np.diff(ends))
        return concatenate(parts), np.cumsum(np.concatenate(lengths))

    def _encode_slow(self, data: np.ndarray, offsets: np.ndarray, threads: int) -> Ids:
        return encode_by_reference(self._definition.reference, [data[a:b] for a, b in pairwise(offsets)], threads)

    def _encode_fast(self, data: np.ndarray, offsets: np.ndarray, threads: int) -> Ids:
        """gigatoken's ids; a document in which it gives a watched id is encoded by the reference instead."""
        ids, ends = self._fast.encode(data, offsets, threads)
        if self._watched_range is None:
            return ids, ends
        low, high = self._watched_range
        # One comparison in the register, since unsigned numbers below `low` wrap round: a fifth of the cost of the lookup.
        if not ((ids - np.uint32(low)) <= high - low).any():
            return ids, ends
        at = np.flatnonzero(self._watched[ids])
        if not at.size:
            return ids, ends
        documents = np.unique(np.searchsorted(ends, at, side="right") - 1)
        texts = [data[offsets[i] : offsets[i + 1]] for i in documents]
        return _replace(ids, ends, documents, encode_by_reference(self._definition.reference, texts, threads))


def load_tokenizer(spec: str, sample: Sequence[bytes] = (), fast: bool = True) -> Tokenizer:
    """The tokenizer at `spec`: a tokenizer.json, a .model, a directory with one (tokenizer.json first), or a name on the hub.

    `sample`: documents of the corpus, on which the fast path must prove itself too (its first half megabyte is used).
    `fast` False: the reference runs, nothing is compared. Raises SpliceError where there is no tokenizer to load.
    """
    path, name = find_tokenizer(spec)
    definition = read_definition(path, name)
    library = definition.reference.library
    if not fast:
        return Tokenizer(definition, None, frozenset(), f"{library} was asked for")
    try:
        backend = Gigatoken(definition.fast_json())
    except BaseException as error:
        return Tokenizer(definition, None, frozenset(), f"gigatoken cannot load it: {reason_of(error)}")
    return _proven(definition, backend, sample)


def _proven(definition: Definition, backend: Gigatoken, sample: Sequence[bytes]) -> Tokenizer:
    """The fast tokenizer if its ids are the reference's on every probe and on the sample, else the reference.

    Where they differ with only special ids watched, a second attempt sends every document in which any added token occurs to
    the reference: implementations part ways most often there, and such documents are few.
    """
    library = definition.reference.library
    literals = [form for text in definition.added for form in (text, text.replace("▁", " "))]
    tests = [(f"probe {name!r}", text.encode()) for name, text in probes(literals)]
    count = len(tests)
    documents = cut_sample(sample)
    tests += [(f"document {i} of the sample", document) for i, document in enumerate(documents)]
    texts = [text for _, text in tests]
    expected = encode_by_reference(definition.reference, texts, 1)
    equal = f"equal to {library} on {count} probes and {len(documents)} documents"
    why = []
    for watched, how in (
        (definition.special, equal),
        (
            definition.special | frozenset(definition.added.values()),
            f"{equal}; documents with an added token go to {library}",
        ),
    ):
        tokenizer = Tokenizer(definition, backend, watched, how)
        try:
            difference = first_difference(tokenizer.encode, expected, texts)
        except BaseException as error:
            return Tokenizer(definition, None, frozenset(), f"gigatoken fails on the probes: {reason_of(error)}")
        if difference is None:
            return tokenizer
        why.append(f"differs from {library} on {tests[difference][0]}")
    return Tokenizer(definition, None, frozenset(), why[-1])


def train_tokenizer(sample: Iterable[bytes], vocab_size: int, directory: Path) -> None:
    """Train the default tokenizer, byte-level BPE with GPT-2's splitting, on the sample and save it in `directory`.

    Ids: <s> 0, </s> 1, <pad> 2, the 256 bytes, then merges. The vocabulary is smaller than `vocab_size` where the sample has
    too few pairs that occur twice. The same sample gives the same files, for any number of threads.
    Raises SpliceError for a `vocab_size` that has no room for the bytes and the special tokens.
    """
    from tokenizers import Tokenizer as Trained
    from tokenizers import decoders, models, pre_tokenizers, trainers

    special = ["<s>", "</s>", "<pad>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(special) + len(alphabet)
    if vocab_size < smallest:
        raise SpliceError(
            f"a tokenizer of {vocab_size} tokens cannot be trained: bytes and special tokens alone are {smallest}"
        )
    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    trained.train_from_iterator((document.decode("utf-8", "replace") for document in sample), trainer)
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "add_bos_token": True}
    _write(directory / "tokenizer.json", trained.to_str().encode())
    _write(directory / "tokenizer_config.json", _to_json(HUB_DEFAULTS | roles))


def _replace(ids: np.ndarray, ends: np.ndarray, documents: np.ndarray, others: Ids) -> Ids:
    """`ids` and their offsets `ends` with the documents of these numbers (ascending) replaced by `others`."""
    other_ids, other_ends = others
    parts, at = [], 0
    for k, i in enumerate(documents):
        parts += [ids[at : ends[i]], other_ids[other_ends[k] : other_ends[k + 1]]]
        at = ends[i + 1]
    lengths = np.diff(ends)
    lengths[documents] = np.diff(other_ends)
    return np.concatenate([*parts, ids[at:]]), np.concatenate([[0], np.cumsum(lengths)])


def _to_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2, sort_keys=True).encode() + b"\n"


def _write(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)
