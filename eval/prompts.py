"""Text to ids: a group's prefix once, and what follows it for each query, as one text would be tokenised.

Tokens may reach over the place where two texts meet, so the ids of a prompt are those of its whole text. To have them without
tokenising a long prefix again for every query, the prefix is cut at the start of one of its last lines: the line before goes
along for context and its ids are taken off. Whether that gives the whole text's ids is seen on each group's first and last
query; where no cut does, all are tokenised whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splice.errors import SpliceError
from splice.tokenizer import Tokenizer

from .task import Group, Query
from .tree import Tree, grow

SHORT = 4096  # characters of a prefix that are as well tokenised with every query
TRIES = 3  # places to cut a prefix at


@dataclass(frozen=True)
class Prompt:
    """A query in ids, after its group's shared ones.

    suffix   what generation goes on from
    tree     the suffix and the answers: labels where the query has some, else the right answers
    lengths  tokens of each answer without what must follow it
    """

    suffix: tuple[int, ...]
    tree: Tree
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens from the prefix's end to that of the longest answer."""
        return 1 + max([len(self.suffix) - 1, *(self.tree.depths[path[-1][0]] + 1 for path in self.tree.paths if path)])


@dataclass(frozen=True)
class Prompts:
    """A group in ids."""

    prefix: tuple[int, ...]
    queries: tuple[Prompt, ...]


class Prompter:
    """bos: an id that begins every prompt, or None."""

    def __init__(self, tokenizer: Tokenizer, bos: int | None) -> None:
        self.tokenizer = tokenizer
        self.bos = bos

    def count(self, text: str) -> int:
        """Tokens of a prompt's text, BOS included."""
        return len(self.ids(text)) + (self.bos is not None)

    def ids(self, text: str) -> list[int]:
        """The ids of a text alone."""
        return self._encode([text])[0]

    def group(self, group: Group) -> Prompts:
        """Prefix and queries; the prefix is what all queries have in common, and each keeps a token at least."""
        texts = [_texts(query) for query in group.queries]
        head, rest = self._split(group.prefix, [text for one in texts for text in one])
        encoded = iter(rest)
        lines = [[next(encoded) for _ in one] for one in texts]
        head = head if self.bos is None else [self.bos, *head]
        # a query keeps a token that all its answers follow
        common = min(_common([ids for line in lines for ids in line]), min(_common(line) for line in lines) - 1)
        if common < 0 and not head:
            raise SpliceError(f"{group.id}: an empty prompt, and no BOS to begin with")
        if common < 0:
            head, lines, common = head[:-1], [[head[-1:] + ids for ids in line] for line in lines], 0
        shared = [*head, *lines[0][0][:common]]
        prompts = [
            _prompt([ids[common:] for ids in line], query) for line, query in zip(lines, group.queries, strict=True)
        ]
        return Prompts(tuple(shared), tuple(prompts))

    def _split(self, prefix: str, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Ids of the prefix's beginning, and of what follows that in prefix + text for each of the texts."""
        if len(prefix) > SHORT:
            whole = self._encode([prefix + texts[0], prefix + texts[-1]])
            for before, cut in _cuts(prefix):
                anchor, tail = prefix[before:cut], prefix[cut:]
                head, start, *rest = self._encode([prefix[:cut], anchor, *(anchor + tail + text for text in texts)])
                if all(ids[: len(start)] == start for ids in rest):
                    rest = [ids[len(start) :] for ids in rest]
                    if [head + rest[0], head + rest[-1]] == whole:
                        return head, rest
        return [], self._encode([prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids, offsets = self.tokenizer.encode([text.encode() for text in texts])
        return [part.tolist() for part in np.split(ids, offsets[1:-1])]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self.tokenizer.decode(np.asarray(ids, np.uint32))


def _cuts(text: str) -> Iterator[tuple[int, int]]:
    """Where the last lines of a text begin, last first, each after the place where the line before that is not blank begins.

    Several, since tokenizers differ in what they make of a blank line.
    """
    cut = len(text)
    for _ in range(TRIES):
        before = cut = _line_before(text, cut)
        while before and not text[before:cut].strip():
            before = _line_before(text, before)
        if before == cut:
            return
        yield before, cut


def _line_before(text: str, end: int) -> int:
    """Where the last line begins that does so before `end`."""
    return text.rfind("\n", 0, max(0, end - 1)) + 1


def _texts(query: Query) -> list[str]:
    """The suffix alone, with each answer, and with each answer and what must follow, if something must."""
    answers = query.labels or query.answers
    ends = ("", query.end) if query.end else ("",)
    return [query.suffix, *(query.suffix + answer + end for end in ends for answer in answers)]


def _prompt(ids: list[list[int]], query: Query) -> Prompt:
    count = len(query.labels or query.answers)
    base, bare, full = ids[0], ids[1 : 1 + count], ids[-count:]
    # an answer may merge with the suffix's last letters; the tree begins where all of them are still alike
    shared = min([len(base), *(_common([base, one]) for one in full)])
    if not shared:
        raise SpliceError(
            f"{query.id}: the tokenizer writes its prompt otherwise with each answer; end the suffix with a line"
        )
    lengths = [(_common([b, f]) if b == f[: len(b)] else len(f)) - shared for b, f in zip(bare, full, strict=True)]
    return Prompt(tuple(base), grow(base[:shared], [one[shared:] for one in full]), tuple(lengths))


def _common(lists: Sequence[Sequence[int]]) -> int:
    """How many first items all of them share."""
    first, last = min(lists), max(lists)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def bos_of(tokenizer: Tokenizer, directory: Path, asked: str) -> int | None:
    """The id that prompts begin with, or None. asked: yes, no, or auto, which is what the files say of `add_bos_token`.

    Where they do not say: what a tokenizer.json's own template adds; of a SentencePiece model, as Llama does, its BOS. The
    tokenizers that `splice build` trains say so, since it begins documents with it.
    Raises SpliceError for a BOS that is asked for of a tokenizer without one.
    """
    if asked == "no":
        return None
    if asked == "yes":
        if tokenizer.bos_id is None:
            raise SpliceError(
                f"{directory}: its tokenizer has no BOS token; leave out --bos yes, or name its BOS in tokenizer_config.json"
            )
        return tokenizer.bos_id
    path = directory / "tokenizer_config.json"
    said = json.loads(path.read_text(encoding="utf-8")).get("add_bos_token") if path.is_file() else None
    if said is None:
        said = _template_adds(directory, tokenizer.bos_id)
    return tokenizer.bos_id if said else None


def _template_adds(directory: Path, bos: int | None) -> bool:
    path = directory / "tokenizer.json"
    if bos is None or not path.is_file():
        return bos is not None
    from tokenizers import Tokenizer as Reference

    return Reference.from_file(str(path)).encode("a").ids[:1] == [bos]
