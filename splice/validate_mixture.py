"""`splice validate` of a mixture: its shards are whole, its examples are of its datasets, and its shares are what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .mix import PRECISION
from .validate import Failed, Problems, Proof


class MixtureProof(Proof):
    """The checks of one mixture; each gives what it found, or raises Failed."""

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """The checks in order."""
        yield "checksums", self.checksums
        yield "examples", self.examples
        yield "shares", self.shares
        yield "tokens", self.tokens

    def examples(self) -> str:
        """Every example is exactly L tokens, and none is there more often than its dataset was taken."""
        parts = self.manifest["mixture"]
        seen = [np.zeros(part["of_examples"], np.int64) for part in parts]
        self._tokens = [0] * len(parts)
        problems = Problems()
        for shard in self.manifest["shards"]:
            number, count = shard["dataset"], 0
            for place, example in enumerate(self._examples_of(shard["file"])):
                where = f"{shard['file']}, example {place}"
                problems.add_all(f"{where}: {wrong}" for wrong in self._shape(example))
                if 0 <= example.number < len(seen[number]):
                    seen[number][example.number] += 1
                else:
                    problems.add(f"{where} has number {example.number}, which {parts[number]['name']} has not")
                self._tokens[number] += self.length - example.padding
                count += 1
            if count != shard["examples"]:
                problems.add(f"{shard['file']} holds {count} examples, manifest says {shard['examples']}")
        for part, times in zip(parts, seen, strict=True):
            if times.sum() != part["examples"] or times.max() > part["repeat"] or times.max() - times.min() > 1:
                problems.add(f"{part['name']}: some examples are there more often than others, or than repeat allows")
        problems.stop()
        return f"{sum(part['examples'] for part in parts):,} of exactly {self.length:,} tokens"

    def shares(self) -> str:
        """The datasets' tokens, counted, are what the manifest says and hit the shares."""
        total = sum(self._tokens)
        for part, tokens in zip(self.manifest["mixture"], self._tokens, strict=True):
            if tokens != part["tokens"]:
                raise Failed(f"{part['name']}: {tokens:,} tokens, manifest says {part['tokens']:,}")
            if abs(tokens / total - part["share"]) > PRECISION:
                raise Failed(f"{part['name']}: {tokens / total:.4f} of the tokens, asked for {part['share']:g}")
        reached = (f"{p['name']} {t / total:.2%}" for p, t in zip(self.manifest["mixture"], self._tokens, strict=True))
        return f"{total:,} tokens: {', '.join(reached)}"
