"""JSON lines, plain or compressed: one JSON object a line, one document an object.

Items of a unit: (path, name, start, stop, first_line), ... : of a plain file the bytes from start to stop, which begin
and end at line ends; a compressed file is one item, stop None. Read as leniently as Python's own writer writes: a
byte order mark, "\r\n", blank lines, NaN and Infinity are taken.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson

from ..storage import is_url
from .blocks import BLOCK_BYTES, EXPANSION, BrokenInput, compression, read_blocks
from .lines import split_lines
from .records import Document, Quarantined, SourceSettings, Unit, os_path, printable
from .remote import size_of
from .rows import document, kind_of, require_fields

Item = tuple[str, str, int, int | None, int]
PROBE_ROWS = 100
PROBE_BLOCKS = 16


def plan_file(path: str, name: str, settings: SourceSettings, target_bytes: int) -> list[tuple[Item, int]]:
    """The file's items and their sizes, split at line ends about every target_bytes; one pass that counts lines.

    A file that cannot be read is one item all the same: its reader reports it.
    """
    shown, named = printable(path), printable(name)
    if is_url(path):
        return [((shown, named, 0, None, 1), size_of(path) * (EXPANSION if compression(path) else 1))]
    try:
        size = os.stat(path).st_size
        if compression(path):
            return [((shown, named, 0, None, 1), size * EXPANSION)]
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return [
                ((shown, named, start, stop, line), stop - start)
                for start, stop, line in _ranges(fd, size, target_bytes)
            ]
        finally:
            os.close(fd)
    except OSError:
        return [((shown, named, 0, None, 1), 0)]


def _ranges(fd: int, size: int, target_bytes: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, number of the first line) of each range. Reads the file once, with pread: it may shrink meanwhile."""
    buffer = bytearray(BLOCK_BYTES)
    start, first, line = 0, 1, 1
    at = 0
    while at < size:
        n = os.preadv(fd, [buffer], at)
        if not n:
            break
        begin = 0
        # The earliest line end at or after the target closes a range; a block may hold several.
        while (end := buffer.find(b"\n", max(begin, start + target_bytes - 1 - at), n)) >= 0:
            line += buffer.count(b"\n", begin, end + 1)
            begin = end + 1
            yield start, at + begin, first
            start, first = at + begin, line
        line += buffer.count(b"\n", begin, n)
        at += n
    if start < size:
        yield start, size, first


def probe(path: str, name: str, settings: SourceSettings) -> None:
    """Raises SpliceError where none of the file's first 100 rows has the text (or id) field: a setting, not bad rows."""
    rows: list[dict[str, Any]] = []
    try:
        blocks = islice(read_blocks(printable(path)), PROBE_BLOCKS)
        for _, line in islice(split_lines(blocks, 1, BLOCK_BYTES), PROBE_ROWS):
            row = json.loads(line) if line is not None else None
            if type(row) is not dict:
                return
            rows.append(row)
    except (BrokenInput, ValueError, RecursionError):
        return
    if len(rows) == PROBE_ROWS:
        require_fields(printable(name), {key for row in rows for key in row}, settings)


def read(unit: Unit, settings: SourceSettings) -> Iterator[Document | Quarantined]:
    """The unit's documents, in the order of the lines."""
    for path, name, start, stop, first in unit.items:
        give_up = compression(path) is not None
        blocks = read_blocks(path, start, stop)
        try:
            for number, line in split_lines(blocks, first, settings.max_line_bytes, give_up):
                if line is None:
                    yield Quarantined(name, number, f"a line of over {settings.max_line_bytes} bytes")
                    continue
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError:
                    if not line or line.isspace():
                        continue
                    try:
                        row = _lenient(line)
                    except ValueError as error:
                        yield Quarantined(name, number, str(error))
                        continue
                if type(row) is dict:
                    yield document(row, name, number, settings)
                else:
                    yield Quarantined(name, number, f"not a JSON object but {kind_of(row)}")
        except BrokenInput as error:
            yield Quarantined(name, error.line, str(error))


def _lenient(line: bytes) -> Any:
    """What Python's json reads and orjson does not: NaN, half surrogate pairs, deep nesting; with a byte order mark.

    Raises ValueError with the reason for the quarantine.
    """
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1} of the line)") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" starting at")
        raise ValueError(f"malformed JSON: {what} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("malformed JSON: nested too deeply") from None
    except ValueError:  # int() of thousands of digits
        raise ValueError("malformed JSON: a number of too many digits") from None


def paths(unit: Unit) -> Iterator[tuple[str, str]]:
    """(name, path to stat) of each item."""
    for path, name, *_ in unit.items:
        yield name, path if is_url(path) else os_path(path)
