"""splice.filters: each reason by example, and the whole against a definition that decodes everything."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splice.filters import FILTERS, check, max_bytes
from splice.sources import SourceSettings


@dataclass(frozen=True)
class Limits:
    min_chars: int = 1
    max_chars: int = 30_000


@pytest.mark.parametrize(
    ("text", "limits", "reason"),
    [
        (b"int main(void) {}\n", Limits(), None),
        ("naïve — 日本語 🎉".encode(), Limits(), None),
        (b"", Limits(), "empty"),
        (b" \t\r\n\x0b\x0c", Limits(), "empty"),
        ("\u00a0\u3000\n\u2003".encode(), Limits(), "empty"),
        ("\u3000日本".encode(), Limits(), None),
        (b"ELF\0\x01", Limits(), "binary"),
        (b"\0\xff\xfe", Limits(), "binary"),
        (b"caf\xe9", Limits(), "not_utf8"),
        (b"\xe9", Limits(), "not_utf8"),
        (b"\xed\xa0\x80", Limits(), "not_utf8"),  # half a surrogate pair
        ("日本語"[:1].encode()[:2], Limits(), "not_utf8"),
        (b"ab", Limits(min_chars=3), "too_short"),
        (b"abc", Limits(min_chars=3), None),
        ("日本".encode(), Limits(min_chars=3), "too_short"),  # 6 bytes
        ("🎉🎉🎉".encode(), Limits(min_chars=3), None),
        (b"a" * 30_000, Limits(), None),
        (b"a" * 30_001, Limits(), "too_long"),
        ("é".encode() * 30_000, Limits(), None),
        ("é".encode() * 30_001, Limits(), "too_long"),
        ("🎉".encode() * 30_000, Limits(), None),
        (b"\0" * 120_000, Limits(), "binary"),
        (
            b"\0" * 120_001,
            Limits(),
            "too_long",
        ),  # refused by its bytes alone, as a source does with a huge file
        (b"a", SourceSettings(), None),
        (b"a" * 30_001, SourceSettings(), "too_long"),
    ],
)
def test_known_values(text, limits, reason):
    assert check(text, limits) == reason


def by_definition(text: bytes, limits: Limits) -> str | None:
    if len(text) > 4 * limits.max_chars:
        return "too_long"
    if not text or text.isspace() or text.decode(errors="replace").isspace():
        return "empty"
    if 0 in text:
        return "binary"
    try:
        chars = len(text.decode())
    except UnicodeDecodeError:
        return "not_utf8"
    if chars < limits.min_chars:
        return "too_short"
    return "too_long" if chars > limits.max_chars else None


texts = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.text(alphabet=" \n\u00a0\u3000aé日🎉", max_size=12).map(str.encode),
)


@given(texts, st.integers(0, 12), st.integers(0, 12))
def test_equals_the_definition(text, min_chars, more):
    limits = Limits(min_chars, min_chars + more)
    # bytes.isspace and str.isspace differ on the control characters 1c to 1f and 85, where either answer will do.
    if not set(text) & {0x1C, 0x1D, 0x1E, 0x1F}:
        assert check(text, limits) == by_definition(text, limits)


def test_max_bytes_is_what_the_longest_text_needs():
    limits = Limits(max_chars=7)
    assert max_bytes(limits) == len("🎉".encode() * 7)
    assert check(b"a" * (max_bytes(limits) + 1), limits) == "too_long"


def test_reasons_are_the_documented_ones():
    assert {reason for reason, _ in FILTERS} == {"empty", "binary", "not_utf8", "too_short", "too_long"}
