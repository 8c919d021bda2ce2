"""The engine: a group's prefix is read once, its queries are answered against it.

What is answered how: labels and known answers by teacher forcing, all tokens of all queries in a few forward passes (the greedy
answer is the gold one exactly when each of its tokens is the likeliest); free text by greedy generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from splice.errors import SpliceError

from .prompts import Prompt, Prompter, Prompts
from .reader import Path, Reader
from .task import Answer, Group, Query


class TooLong(SpliceError):
    """A prompt over the model's context. tokens: its length, answer included."""

    def __init__(self, group: str, tokens: int, limit: int) -> None:
        self.tokens = tokens
        super().__init__(
            f"{group}: a prompt of {tokens:,} tokens, its answer included, is {tokens - limit:,} over the model's context of "
            f"{limit:,}; ask for a shorter one, leave such groups out with --too-long skip, or go beyond the context the "
            "model names with --max-context"
        )


@dataclass(frozen=True)
class Answered:
    """A group's answers, in the order of its queries. agrees: of those generated as well, whether that gave the same."""

    prefix_tokens: int
    answers: tuple[Answer, ...]
    agrees: dict[int, bool]


class Engine:
    """limit: the longest prompt with its answer, tokens; None where the model has no limit. eos: ids that end a text."""

    def __init__(self, reader: Reader, prompter: Prompter, limit: int | None, eos: frozenset[int]) -> None:
        self.reader = reader
        self.prompter = prompter
        self.limit = limit
        self._eos = eos

    def answer(self, group: Group, generate: Mapping[int, int], check: int = 0) -> Answered:
        """Answer a group. generate: of the queries, by number, that are to be generated: at most so many tokens.

        The first `check` of the others are generated too, to see that teacher forcing tells the same. Raises TooLong.
        """
        prompts = self.prompter.group(group)
        rooms = [
            max(len(prompt.suffix) + generate.get(number, 0), prompt.longest if _forced(query, number, generate) else 0)
            for number, (query, prompt) in enumerate(zip(group.queries, prompts.queries, strict=True))
        ]
        self._fits(group, prompts, max(rooms))
        alone = [n for n, room in enumerate(rooms) if self.reader.most is not None and room > self.reader.most]
        if alone and len(group.queries) > 1:
            return self._apart(group, alone, generate, check)
        prefix = self.reader.read(prompts.prefix, max(rooms))
        forced = [n for n, query in enumerate(group.queries) if _forced(query, n, generate)]
        read = dict(zip(forced, self.reader.score(prefix, [prompts.queries[n].tree for n in forced]), strict=True))
        said = self._generated(prefix, group, prompts, generate)
        answers = []
        for number, query in enumerate(group.queries):
            paths = read.get(number)
            if paths is None:
                answers.append(Answer(text=said[number]))
                continue
            right = range(len(paths)) if not query.labels else [query.labels.index(a) for a in query.answers]
            matched = any(all(paths[i][1]) for i in right)
            likelihoods = _likelihoods(paths, prompts.queries[number]) if query.labels else ()
            answers.append(Answer(matched, likelihoods, said.get(number)))
        sample = [n for n in forced if n not in generate][:check]
        agrees = self._agree(prefix, prompts, sample, [read[n] for n in sample])
        return Answered(len(prompts.prefix), tuple(answers), agrees)

    def _apart(self, group: Group, alone: Sequence[int], generate: Mapping[int, int], check: int) -> Answered:
        """Queries too long to follow a prefix in a local context of FoT's, each as a prompt of its own: all but its end is prefix."""
        shared = [n for n in range(len(group.queries)) if n not in set(alone)]
        answers: dict[int, Answer] = {}
        agrees: dict[int, bool] = {}
        tokens = 0
        for numbers in ([shared] if shared else []) + [[n] for n in alone]:
            part = replace(group, queries=tuple(group.queries[n] for n in numbers))
            some = {place: generate[n] for place, n in enumerate(numbers) if n in generate}
            answered = self.answer(part, some, check - len(agrees))
            answers |= dict(zip(numbers, answered.answers, strict=True))
            agrees |= {numbers[place]: agree for place, agree in answered.agrees.items()}
            tokens = tokens or answered.prefix_tokens
        return Answered(tokens, tuple(answers[n] for n in range(len(group.queries))), agrees)

    def _fits(self, group: Group, prompts: Prompts, room: int) -> None:
        tokens = len(prompts.prefix) + room
        if self.limit is not None and tokens > self.limit:
            raise TooLong(group.id, tokens, self.limit)

    def _generated(self, prefix: object, group: Group, prompts: Prompts, generate: Mapping[int, int]) -> dict[int, str]:
        """Of each query to generate, the text up to its `end` or EOS."""
        said: dict[int, str] = {}
        for tokens in sorted(set(generate.values())):
            numbers = [n for n in generate if generate[n] == tokens]
            ends = [group.queries[n].end for n in numbers]

            def ended(row: int, ids: list[int], ends: Sequence[str] = ends) -> bool:
                return ids[-1] in self._eos or bool(ends[row] and ends[row] in self.prompter.decode(ids))

            suffixes = [prompts.queries[n].suffix for n in numbers]
            for number, end, ids in zip(
                numbers, ends, self.reader.generate(prefix, suffixes, tokens, ended), strict=True
            ):
                text = self.prompter.decode(ids[:-1] if ids[-1] in self._eos else ids)
                said[number] = text.split(end)[0] if end else text
        return said

    def _agree(self, prefix: object, prompts: Prompts, numbers: list[int], read: list[list[Path]]) -> dict[int, bool]:
        """Whether these queries generate exactly those of their answers that teacher forcing says they do.

        By tokens: the answer's, and those of what must follow it.
        """
        if not numbers:
            return {}
        trees = [prompts.queries[n].tree for n in numbers]
        suffixes = [tree.tokens[: tree.paths[0][0][0] + 1] for tree in trees]
        most = max(len(path) for tree in trees for path in tree.paths)
        said = self.reader.generate(prefix, suffixes, most, lambda row, ids: False)
        agrees = {}
        for number, tree, paths, ids in zip(numbers, trees, read, said, strict=True):
            generated = [tuple(token for _, token in path) == tuple(ids[: len(path)]) for path in tree.paths]
            agrees[number] = generated == [all(greedy) for _, greedy in paths]
        return agrees

    def losses(self, ids: Sequence[int], name: str) -> np.ndarray:
        """As Reader's, of a text called `name` in errors. Raises TooLong."""
        if self.limit is not None and len(ids) > self.limit:
            raise TooLong(name, len(ids), self.limit)
        return self.reader.losses(ids)


def _forced(query: Query, number: int, generate: Mapping[int, int]) -> bool:
    """Whether teacher forcing answers a query: its labels, or whatever is not generated."""
    return bool(query.labels) or number not in generate


def _likelihoods(paths: list[Path], prompt: Prompt) -> tuple[float, ...]:
    """Of each label, without what must follow it, nats."""
    return tuple(sum(path[0][:length]) for path, length in zip(paths, prompt.lengths, strict=True))
