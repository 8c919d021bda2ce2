"""What passes between the sources and the ingest: settings and units in; documents, refusals and bad input out."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceSettings:
    """How sources are read; the same for all sources of a build.

    glob: which files of a directory (all where empty): a pattern without "/" is matched against the file's name, one
        with "/" against its path relative to the directory, where "**/" stands for any directories, also none.
    text_field, id_field, repo_field, path_field, domain_field: the fields of a JSONL, Parquet or hub row. Repository,
        path and domain are optional in a row; the text is not, nor is the id once its field is named.
    max_line_bytes: a longer JSONL line is skipped and quarantined.
    min_chars, max_chars: what splice.filters keeps. Sources read no more of a file than they need to refuse it.
    """

    glob: tuple[str, ...] = ()
    text_field: str = "text"
    id_field: str | None = None
    repo_field: str | None = None
    path_field: str | None = None
    domain_field: str | None = None
    max_line_bytes: int = 64 * 2**20
    max_chars: int = 30_000
    min_chars: int = 1


@dataclass(frozen=True, slots=True)
class Document:
    """A text as read. The id is unique in its source (or as unique as id_field is) and valid UTF-8; text may be not.

    repo: where documents of one repository are to stay together, its name within the source. domain: of a row.
    """

    id: str
    text: bytes
    repo: str | None
    path: str | None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A document that need not be read to be refused; reason as in splice.filters."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Input that could not be read.

    file: as in the ids, relative to the source. line: of JSONL, counted from 1; of Parquet and the hub, the row,
    counted from 0; None where the whole file is meant.
    """

    file: str
    line: int | None
    reason: str


@dataclass(frozen=True)
class Unit:
    """A piece of a source that one task reads, described by JSON-able values alone.

    source: the source's display name, unique among the sources of a build.
    kind: tree, jsonl, parquet, disk or hub: which reader knows the items.
    items: what to read, as that reader's plan() wrote it. Paths are absolute, in their printable form.
    bytes: about how much text to expect.
    """

    source: str
    kind: str
    items: tuple[Any, ...]
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of JSON-able values."""
        return {"source": self.source, "kind": self.kind, "items": self.items, "bytes": self.bytes}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Unit:
        """The unit that to_dict() described, also after a way through JSON (lists become tuples again)."""
        return cls(fields["source"], fields["kind"], _tuples(fields["items"]), fields["bytes"])

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Unit:
        """The unit that to_json() wrote."""
        return cls.from_dict(json.loads(text))


def printable(path: str) -> str:
    r"""A file name as valid UTF-8, and different for different names.

    Bytes that are not UTF-8 (surrogates in Python's form of the name) become \xNN, and a backslash of the name itself
    is doubled, so that os_path() finds the way back.
    """
    if "\\" in path:
        path = path.replace("\\", "\\\\")
    try:
        path.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", path)
    return path


def os_path(name: str) -> str:
    """The path that os.open understands, from its printable form."""
    if "\\" not in name:
        return name
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 16)]) if found[1] else b"\\", name.encode()))


def os_reason(error: OSError) -> str:
    """Why the system refused, in its own words ("Permission denied")."""
    return error.strerror or str(error) or type(error).__name__


_SURROGATE = re.compile("[\udc80-\udcff]")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|\\)")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value
