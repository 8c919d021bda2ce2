"""Which documents are kept: five cheap filters, applied in one order, each naming its reason.

A filter looks at the bytes of a text and at two limits. The reasons become counters of the ledger:

    too_long    more than max_chars characters
    empty       nothing but white space
    binary      a NUL byte
    not_utf8    not valid UTF-8
    too_short   fewer than min_chars characters

Characters are Unicode characters. A text of more than 4 * max_chars bytes is too long whatever it holds, so that a
source may refuse a huge file by its first bytes and say what `check` would have said of the whole.
"""

from __future__ import annotations

from typing import Protocol

BYTES_PER_CHAR = 4  # the most that UTF-8 takes


class Limits(Protocol):
    """The settings the filters read (SourceSettings is one)."""

    @property
    def min_chars(self) -> int: ...

    @property
    def max_chars(self) -> int: ...


class Filter(Protocol):
    """True where the text is refused."""

    def __call__(self, text: bytes, limits: Limits) -> bool: ...


def check(text: bytes, settings: Limits) -> str | None:
    """The reason why this text is refused, or None where it is kept. Never raises."""
    for reason, refuses in FILTERS:
        if refuses(text, settings):
            return reason
    return None


def max_bytes(limits: Limits) -> int:
    """The most bytes that a text of max_chars characters can have."""
    return BYTES_PER_CHAR * limits.max_chars


def _beyond_any_encoding(text: bytes, limits: Limits) -> bool:
    return len(text) > BYTES_PER_CHAR * limits.max_chars


def _is_empty(text: bytes, limits: Limits) -> bool:
    if not text or text.isspace():
        return True
    # White space beyond ASCII (no-break, ideographic): one character tells nearly all texts apart from it.
    first = text.lstrip()[:BYTES_PER_CHAR]
    return first[0] >= 128 and first.decode(errors="replace")[0].isspace() and text.decode(errors="replace").isspace()


def _is_binary(text: bytes, limits: Limits) -> bool:
    return b"\0" in text


def _is_not_utf8(text: bytes, limits: Limits) -> bool:
    if text.isascii():
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def _is_too_short(text: bytes, limits: Limits) -> bool:
    # As many bytes as four times the characters asked for are enough, whatever they encode.
    return len(text) < BYTES_PER_CHAR * limits.min_chars and len(text.decode()) < limits.min_chars


def _is_too_long(text: bytes, limits: Limits) -> bool:
    return len(text) > limits.max_chars and (text.isascii() or len(text.decode()) > limits.max_chars)


FILTERS: tuple[tuple[str, Filter], ...] = (
    ("too_long", _beyond_any_encoding),
    ("empty", _is_empty),
    ("binary", _is_binary),
    ("not_utf8", _is_not_utf8),
    ("too_short", _is_too_short),
    ("too_long", _is_too_long),
)
