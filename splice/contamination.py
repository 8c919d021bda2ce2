"""Evaluation data in the corpus: n-grams of words that a document must not share with it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from .errors import SpliceError
from .near import shingles
from .storage import local, location


class Contamination:
    """The n-grams of evaluation files. hashes: uint64 [S], ascending; owner: int32 [S], the file each is from."""

    def __init__(self, hashes: np.ndarray, owner: np.ndarray, files: Sequence[str], ngram: int, note: str = "") -> None:
        """note: what a user should know of the files, or ""."""
        self.hashes, self.owner, self.files, self.ngram, self.note = hashes, owner, files, ngram, note

    @property
    def fingerprint(self) -> str:
        """Of the n-grams and the names of the files."""
        import xxhash

        return xxhash.xxh3_128_hexdigest(self.hashes.tobytes() + self.owner.tobytes() + repr(list(self.files)).encode())

    @classmethod
    def of_files(cls, paths: Sequence[str], ngram: int) -> Contamination:
        """Every string of .jsonl and .json (.gz, .zst), every string in .parquet, any other file as one text.

        Each string is a text of its own. One of fewer than `ngram` words would be found in half a corpus: it only matches
        a document that is nothing else. Raises SpliceError for a file that cannot be read or holds no word.
        """
        hashes, owner = [], []
        short = 0
        for number, path in enumerate(paths):
            found = [
                hashed for text in _texts(local(location(path))) for hashed in [_of_text(text, ngram)] if len(hashed)
            ]
            if not found:
                raise SpliceError(f"{path}: holds no word to decontaminate by; leave it out")
            hashes += found
            short += sum(len(hashed) == 1 for hashed in found)
            owner.append(np.full(sum(map(len, found)), number, np.int32))
        distinct, first = np.unique(np.concatenate(hashes), return_index=True)
        note = (
            f"{short:,} of {len(hashes):,} texts to decontaminate by have at most --ngram-words {ngram} words; shorter ones only "
            "match a document that is nothing else"
        )
        return cls(distinct, np.concatenate(owner)[first], [str(path) for path in paths], ngram, note if short else "")

    def found_in(self, text: bytes) -> str | None:
        """The name of the file that a document shares an n-gram with, or None."""
        hashed = _of_text(text, self.ngram)
        at = np.minimum(np.searchsorted(self.hashes, hashed), len(self.hashes) - 1)
        hits = at[self.hashes[at] == hashed]
        return self.files[self.owner[hits[0]]] if len(hits) else None

    def save(self, path: Path) -> None:
        """Write to an .npz at `path`."""
        files = np.array([json.dumps([list(self.files), self.ngram])])
        with open(path, "wb") as out:
            np.savez(out, hashes=self.hashes, owner=self.owner, files=files)

    @classmethod
    def load(cls, path: Path) -> Contamination:
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as saved:
            files, ngram = json.loads(str(saved["files"][0]))
            return cls(saved["hashes"], saved["owner"], files, ngram)


def _of_text(text: bytes, ngram: int) -> np.ndarray:
    return shingles(np.frombuffer(text, np.uint8), np.array([0, len(text)]), ngram)[0]


def _texts(path: Path) -> Iterator[bytes]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    try:
        if suffixes[-1:] in ([".parquet"], [".pq"]):
            yield from _of_parquet(path)
            return
        data = _unpacked(path, suffixes)
        if ".jsonl" in suffixes or ".ndjson" in suffixes:
            for number, line in enumerate(data.splitlines(), 1):
                try:
                    yield from _strings(json.loads(line)) if line.strip() else ()
                except (ValueError, RecursionError) as error:
                    raise SpliceError(f"{path}:{number}: not JSON: {error}; mend or remove the line") from None
        elif ".json" in suffixes:
            yield from _strings(json.loads(data))
        else:
            yield data
    except SpliceError:
        raise
    except (OSError, ValueError, EOFError, RecursionError, zlib.error, zstandard.ZstdError) as error:
        raise SpliceError(f"{path}: cannot be read to decontaminate by: {error}") from error


def _unpacked(path: Path, suffixes: list[str]) -> bytes:
    if suffixes[-1:] == [".gz"]:
        with gzip.open(path) as file:
            return file.read()
    if suffixes[-1:] in ([".zst"], [".zstd"]):
        with open(path, "rb") as packed, zstandard.ZstdDecompressor().stream_reader(packed) as file:
            return file.read()
    return path.read_bytes()


def _of_parquet(path: Path) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(1024):
        for column in batch.columns:
            if "string" in str(column.type):  # also lists and structures of them
                yield from _strings(column.to_pylist())


def _strings(value: Any) -> Iterator[bytes]:
    """All strings of a JSON value, but no names of fields."""
    if isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
