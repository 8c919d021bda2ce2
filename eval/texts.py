"""Documents to measure perplexity on: texts as they lie on disk, any source of `splice build`, or a packed dataset."""

from __future__ import annotations

import gzip
import hashlib
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from splice.errors import SpliceError
from splice.sources import Document, SourceSettings, plan_units, read_unit
from splice.sources.listing import list_tree
from splice.sources.records import printable
from splice.store import PackedDataset

from .task import DataFile

TEXT = (".txt", ".text", ".md", ".txt.gz", ".text.gz")
TAR = (".tar", ".tar.gz", ".tgz")


def is_dataset(source: str) -> bool:
    """Whether a source is the --output of a build, which holds ids and no text."""
    return (Path(source) / "manifest.json").is_file()


def packed(source: str) -> tuple[PackedDataset, DataFile]:
    """A packed dataset, and what identifies it."""
    dataset = PackedDataset(source)
    digest = hashlib.sha256((Path(source) / "manifest.json").read_bytes()).hexdigest()
    return dataset, DataFile(Path(source).name, digest, known=False)


def texts(source: str, text_field: str) -> Iterator[tuple[str, str]]:
    """(id, text) of a source's documents, in order: a text file (also .gz), a tar or a directory of them, or what `splice build` reads.

    Raises SpliceError for what does not exist or is torn.
    """
    path = Path(source)
    if path.is_file() and path.name.lower().endswith((*TEXT, *TAR)):
        yield from _file(path, path.name)
        return
    settings = SourceSettings(text_field=text_field, max_chars=sys.maxsize)
    units = plan_units([source], settings)
    if path.is_dir() and {unit.kind for unit in units} == {"tree"}:
        for file in list_tree(source).files:
            yield from _file(path / file.path, printable(file.path))
        return
    for unit in units:
        for document in read_unit(unit, settings):
            if isinstance(document, Document):
                yield document.id, _decode(document.text)


def _file(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """A text, packed or not, or the texts of a tar. What has a zero byte is no text."""
    with _reading(path):
        if name.lower().endswith(TAR):
            with tarfile.open(path) as tar:
                for member in sorted((m for m in tar if m.isfile()), key=lambda m: m.name):
                    file = tar.extractfile(member)
                    data = file.read() if file else b""
                    if b"\0" not in data:
                        yield member.name, _decode(data)
            return
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    if b"\0" not in data:
        yield name, _decode(data)


def source_record(source: str) -> DataFile:
    """What identifies a source: sha256 of a file, or of a directory's names and files; of a dataset of the hub, its name."""
    path = Path(source)
    if path.is_file():
        return DataFile(path.name, _sha256(path), known=False)
    if not path.is_dir():
        return DataFile(source, "", known=False)
    listed = "".join(f"{printable(file.path)} {_sha256(path / file.path)}\n" for file in list_tree(source).files)
    return DataFile(path.name, hashlib.sha256(listed.encode()).hexdigest(), known=False)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ids_of(dataset: PackedDataset, example: int) -> np.ndarray:
    """The tokens of an example without its padding, int32 [T]."""
    ids, _, padding = dataset.training_columns(example)
    return ids[: len(ids) - padding]


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, tarfile.TarError) as error:
        raise SpliceError(f"{source}: cannot be read ({error}); get the file again") from None


def _decode(data: bytes) -> str:
    """UTF-8, or what plain texts were before it: Windows-1252."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")
