"""The proof that a fast tokenizer may stand for its reference: texts on which tokenizers are known to part ways.

Each probe is here because some pair of implementations differs on it: white space is stripped or merged, line ends are
normalised, a special token's name is parsed, a Unicode class is of another version, a control character ends a string.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .tokenizer_backend import Ids

SAMPLE_BYTES = 512 << 10  # the reference runs at about 2 MB/s
MAX_LITERALS = 256  # Gemma has 6 000 added tokens

_SPACES = (
    " ", "  ", "   ", "    ", " " * 7, " " * 16, " " * 33, "\t", "\t\t", "\t\t\t\t", " \t", "\t ", " \t \t ", "\n", "\n\n",
    "\n\n\n", "\r", "\r\n", "\r\n\r\n", "\n\r", "\v", "\f", "\n ", " \n", "  \n  ", "\n\t", "\t\n", "\x1c", "\x85", "\xa0",
    "\u1680", "\u2000\u2003\u2009", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\u2060", "\ufeff", "▁", "▁▁",
)  # fmt: skip

_TEXTS = {
    "empty": "",
    "one letter": "a",
    "words": "The quick brown fox jumps over the lazy dog. Once upon a time, in 1984, it cost $3.50!",
    "contractions": "I'm you're he's we've they'll I'd isn't 'S 'LL don’t ''s 's's it'S",
    "case": "camelCase PascalCase SCREAMING_CASE snake_case kebab-case iOS eBay XMLHttpRequest2",
    "digits": "0 1 12 123 1234 12345 1234567890 00 007 3.14159 1,000,000 1e-9 0x1F 0b1010 2024-12-31T23:59:59Z ٠١٢٣ ½ ² Ⅻ 一二",
    "digits in words": "a1 1a a1b2c3 v1.2.3 abc123def 1st 2nd x86_64 utf8 H2O",
    "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ... --- ___ *** === !!! ??? ;; :: -> => <= >= != == && || << >> // /* */",
    "quotes": "“curly” ‘single’ «guillemets» „low“ 'a' \"b\" `c` ```d```",
    "C": "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf(\"%d\\n\", i);\n\treturn 0;\n}\n",
    "C, CRLF": "static int x;\r\n\r\n/* comment\r\n * more\r\n */\r\n#define A(b) \\\r\n\t((b) + 1)\r\n",
    "Python": "def f(x: int = 3) -> str:\n    \"\"\"Doc.\"\"\"\n    if x:\n        return f\"{x!r:>10}\"  # why\n\n\n@decorator\nclass A(B):\n    pass\n",
    "HTML": "<!DOCTYPE html>\n<html lang=\"en\"><body class='a b'><p>x &amp; y &lt;z&gt;<br/></p></body></html>",
    "JSON": '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9\\n"}}',
    "LaTeX": "\\begin{equation}\n  \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}\n\\end{equation}",
    "diff": "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n context\n-old\n+new\n",
    "makefile": "all: a b\n\t$(CC) -o $@ $^ \\\n\t  $(LDFLAGS)\n.PHONY: all\n",
    "URL": "https://user:pw@example.org:8080/a/b.html?q=1&r=%20x#frag mailto:a.b+c@d.co.uk C:\\dir\\file.txt ~/a/../b",
    "base64": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24sIGJ1dCBieSB0aGlz+/8=",
    "accents, composed": "café naïve Ångström façade Zürich İstanbul ǆ ﬁ ſ",
    "accents, combining": "cafe\u0301 nai\u0308ve A\u030angstro\u0308m z\u0351\u036b\u0343\u036a\u0302",
    "mark first": "\u0301a \u0308 \u20e3",
    "NFC and NFKC targets": "ﬃ ① ㎏ Å Ω ｆｕｌｌ　ｗｉｄｔｈ ﷺ ½ ™ ḍ̇ 한글 \u1112\u1161\u11ab",
    "Greek, Cyrillic": "Ελληνικά ΣΊΣΥΦΟΣ ς Русский язык, ёлка Ђорђе",
    "Hebrew, Arabic": "שלום עולם \u05b8 مرحبا بالعالم ـــ \u064b\u0651 \u200fRTL\u200e \u202eoverride\u202c",
    "Indic": "हिन्दी क्षत्रिय தமிழ் తెలుగు বাংলা \u0d15\u0d4d\u200d",
    "Thai, Lao, Khmer": "ภาษาไทยไม่มีช่องว่าง ລາວ ខ្មែរ",
    "Chinese, Japanese, Korean": "中文字符，没有空格。日本語のテキスト、カタカナ。한국어 텍스트 ㄱㄴㄷ",
    "emoji": "😀 👍🏽 ❤️ ☺ 🇵🇱🇺🇸 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "emoji joined": "👨‍👩‍👧‍👦 👩🏾‍💻 🏳️‍🌈 🧑🏻‍🤝‍🧑🏿a‍b",
    "plane 1": "𐀀 𐍈 𝐀𝓑𝔠 𝟘𝟙𝟚 𒀀 𓀀 🀄 𞤀",
    "plane 2": "𠀀 𪛖 𫝀 𠮷野家",
    "plane 3": "\U00030000 \U0003134a",
    "planes 4 to 13": "\U00040000\U0005abcd\U000dfffd",
    "plane 14": "\U000e0001\U000e0020a\U000e0100",
    "planes 15 and 16": "\U000f0000\U000ffffd\U00100000\U0010fffd",
    "noncharacters": "\ufdd0 \ufffe \uffff \U0001fffe \U0010ffff",
    "private use": "\ue000\uf8ff",
    "replacement character": "a\ufffdb \ufffd\ufffd",
    "BOM first": "\ufeff#include <a.h>\n",
    "BOM within": "a\ufeffb",
    "NUL": "\x00",
    "NUL within": "a\x00b\x00\x00 c\x00",
    "control characters": "".join(map(chr, range(1, 32))),
    "control characters apart": "".join(f"a{chr(c)}b {chr(c)} " for c in [*range(1, 32), 127, *range(128, 160)]),
    "ANSI escapes": "\x1b[31mred\x1b[0m\b\a\x7f",
    "bytes spelled out": "<0x41><0x0A> <0x00> <0xFF> <0x4> <0xGG>",
    "metasymbols": "▁ ▁a a▁b ▁▁a Ġ Ġa Ċ ĉ ## ##ing @@ </w> Ã© â\x80\x99",
    "soft hyphen and joiners": "co\xadoperate a\u200bb a\u200cb a\u200db a\u2060b",
    "letters of every length": "a é ल 𐍈 aé éल ल𐍈 𐍈a",
}  # fmt: skip

_RUNS = (
    "a",
    "ab",
    "A",
    "0",
    "9",
    " ",
    "\t",
    "\n",
    "\r\n",
    "-",
    "=",
    "*",
    "é",
    "中",
    "😀",
    "\x00",
    "_",
    "/",
    "a ",
    " a",
    "\n ",
    "<s>",
)


def probes(literals: Sequence[str]) -> list[tuple[str, str]]:
    """(name, text) of every probe; `literals` are the texts of the tokenizer's special and added tokens."""
    return list(_probes(literals))


def _probes(literals: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from _TEXTS.items()
    for space in _SPACES:
        yield f"white space {space!a}", space
        yield f"leading {space!a}", f"{space}word"
        yield f"trailing {space!a}", f"word{space}"
        yield f"inner {space!a}", f"one{space}two{space}{space}3{space}."
    for run in _RUNS:
        yield f"{run!a} 300 times", run * 300
        yield f"{run!a} 5000 times, in words", f"x {run * 5000} y"
    usual = {
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "<mask>",
        "<bos>",
        "<eos>",
        "[CLS]",
        "[INST]",
        "<|endoftext|>",
        "<|im_start|>",
    }
    usual |= {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|fim_prefix|>", "<think>"}
    literals = list(dict.fromkeys(literals))
    some = literals[:: -(-len(literals) // MAX_LITERALS) or 1]
    for literal in [*some, *sorted(usual.difference(literals))]:
        yield f"the text {literal!a}", literal
        yield (
            f"the text {literal!a} among words",
            f"a {literal} b{literal}c  {literal}{literal}\n{literal}\n d{literal} ",
        )
        yield (
            f"the text {literal!a} in parts",
            f"{literal[:-1]} {literal[1:]}{literal[:1]} {literal.upper()}",
        )
    # Whether a code point is a letter, a digit or neither decides where words are split; every fifth of planes 0 and 1.
    for start in range(0x80, 0x20000, 0x400):
        points = [chr(c) for c in range(start, start + 0x400, 5) if not 0xD800 <= c < 0xE000]
        yield f"code points U+{start:04X} to U+{start + 0x3FF:04X}", "".join(f" {c}1{c}a" for c in points)
    rng = random.Random(0)
    for i in range(32):
        yield f"random text {i}", "".join(_random_character(rng) for _ in range(rng.randrange(1, 400)))


def _random_character(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return chr(rng.randrange(0x80))
    if kind < 0.6:
        return rng.choice("   \n\t\r\xa0")
    if kind < 0.8:
        return chr(rng.randrange(0x80, 0x3000))
    return chr(
        rng.choice((rng.randrange(0x3000, 0xD800), rng.randrange(0xE000, 0x10000), rng.randrange(0x10000, 0x110000)))
    )


def cut_sample(documents: Sequence[bytes]) -> list[bytes]:
    """The first documents, up to SAMPLE_BYTES, the last one cut between two characters."""
    cut, room = [], SAMPLE_BYTES
    for document in documents:
        if room <= 0:
            break
        head = bytes(document[:room])
        if len(head) < len(document):
            head = head.decode("utf-8", "ignore").encode()
        cut.append(head)
        room -= len(head)
    return cut


def first_difference(
    fast: Callable[[Sequence[bytes]], Ids],
    expected: Ids,
    texts: Sequence[bytes],
) -> int | None:
    """The number of the first text whose ids under `fast` are not the `expected` ones, or None where all are equal."""
    ids, ends = fast(texts)
    if np.array_equal(ids, expected[0]) and np.array_equal(ends, expected[1]):
        return None
    for i in range(len(texts)):
        if not np.array_equal(ids[ends[i] : ends[i + 1]], expected[0][expected[1][i] : expected[1][i + 1]]):
            return i
    return len(texts) - 1  # equal ids and unequal offsets: cannot be placed, and is a difference
