"""Key-value retrieval (Liu et al. 2023, section 3): find a key's value in a JSON object of random UUIDs.

dense  one dictionary is one group that asks for the key at every position: a whole curve for one reading of it
litm   the protocol of Lost in the Middle: an example's record is moved to the tested position, one question a prompt
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import numpy as np

from splice.errors import SpliceError
from splice.seeded import key, mix

from ..data import AGAIN, Known, field, json_lines, look
from ..scoring import require_scorer
from ..settings import Integers, TaskSettings, setting
from ..task import Answer, Count, Group, Loaded, Query, QueryTask
from .positions import Positions, chosen

Record = tuple[str, str]  # key, value

HEAD = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
PUBLISHED = {  # pairs -> sha256, packed and not
    75: (
        "eb6d61fc3473349f2b86df76757c6ab659cc929d907d24caf1c69928e03f6203",
        "a0b62bcf5c33d41acd002250633c41f4890071bd05716849513b14a69473cd60",
    )
}
POSITIONS = {  # pairs -> where Lost in the Middle put the gold
    75: (0, 24, 49, 74),
    140: (0, 34, 69, 104, 139),
    300: (0, 49, 99, 149, 199, 249, 299),
}
EXAMPLES = {"dense": 20, "litm": 500}


class KvSettings(TaskSettings):
    """Of key-value retrieval."""

    mode: Literal["dense", "litm"] = setting("dense", "dense: every key of a dictionary; litm: one key, moved")
    pairs: Integers = setting([75], "of a dictionary; a run for each")
    positions: Positions | None = setting(
        None, "of the key that is asked for, from 0, or all; default: all, litm: the published ones"
    )
    examples: int | None = setting(None, "dictionaries; default: 20, litm: 500", ge=1)
    answer_tokens: int = setting(100, "generated at most", ge=1)


@dataclass(frozen=True)
class Example:
    """A dictionary, and the place of the record that litm moves."""

    records: tuple[Record, ...]
    gold: int


class Kv(QueryTask):
    """Groups share a dictionary (dense), or are one prompt (litm): by example, then by descending position.

    In that order a prompt has the longest beginning in common with the one before it.
    """

    name = "kv"
    help = "key-value retrieval: the value of a key in a JSON object, by position"
    settings = KvSettings
    metrics = ("match",)
    unit = "dictionaries"

    def variants(self, settings: KvSettings) -> list[tuple[str, KvSettings]]:
        require_scorer(self.name, settings.scorer, ("match", "generate"), "its answers are not among a few labels")
        for pairs in settings.pairs:
            if pairs < 2:
                raise SpliceError(f"kv: --pairs {pairs}, but a dictionary has 2 at least")
            _positions(settings, pairs)
        return [(f"kv-{settings.mode}-{n}", settings.model_copy(update={"pairs": [n]})) for n in settings.pairs]

    def load(self, settings: KvSettings) -> Loaded:
        """The published examples where litm mode finds them in --data-dir, else examples drawn by the seed."""
        (pairs,) = settings.pairs
        wanted = settings.examples or EXAMPLES[settings.mode]
        published = Known(f"kv-retrieval-{pairs}_keys.jsonl", PUBLISHED.get(pairs, ()))
        found = look(settings, [published]) if settings.mode == "litm" else None
        if found is None:
            return Loaded([Example(dictionary(pairs, settings.seed, number), 0) for number in range(wanted)])
        examples = [_example(where, row, pairs) for where, row in json_lines(found)]
        if settings.examples and settings.examples > len(examples):
            raise SpliceError(
                f"kv: --examples {settings.examples}, but {found.path} has {len(examples)}; ask for fewer"
            )
        return Loaded(examples[:wanted], (found.record,))

    def groups(self, settings: KvSettings, loaded: Loaded, count: Count) -> Iterator[Group]:
        (pairs,) = settings.pairs
        positions = _positions(settings, pairs)
        for number, example in enumerate(loaded.rows):
            name = f"dictionary-{number:04d}"
            if settings.mode == "dense":
                queries = [_query(f"{name}-{p}", example.records[p], p, f"{name}-{p}") for p in positions]
                yield Group(name, name, prompt(example.records), tuple(queries[: settings.limit]))
                continue
            for p in reversed(positions):
                records = moved(example.records, example.gold, p)
                query = _query(f"{name}-{p}", records[p], p, name)
                yield Group(f"{name}-{p}", name, prompt(records), (query,))

    def score(self, settings: KvSettings, query: Query, answer: Answer) -> dict[str, float]:
        """Of generated text as the original: the value anywhere in it."""
        if answer.text is not None:
            return {"match": float(query.answers[0].strip().lower() in answer.text.lower())}
        return {"match": float(answer.matched or False)}

    def size(self, settings: KvSettings, loaded: Loaded) -> int:
        (pairs,) = settings.pairs
        return len(loaded.rows) * (1 if settings.mode == "dense" else len(_positions(settings, pairs)))


def dictionary(pairs: int, seed: int, number: int) -> tuple[Record, ...]:
    """Records of UUIDs of version 4, drawn by (seed, number). A larger dictionary begins with the smaller one."""
    words = mix(np.arange(4 * pairs, dtype=np.uint64) ^ key(seed, "key-value", number)).tolist()
    uuids = [str(UUID(int=high << 64 | low, version=4)) for high, low in zip(words[::2], words[1::2], strict=True)]
    return tuple(zip(uuids[::2], uuids[1::2], strict=True))


def moved(records: Sequence[Record], gold: int, position: int) -> list[Record]:
    """The records with the one at `gold` moved to `position`; the others keep their order."""
    others = [*records[:gold], *records[gold + 1 :]]
    return [*others[:position], records[gold], *others[position:]]


def prompt(records: Sequence[Record]) -> str:
    """All up to the key that is asked for."""
    lines = ",\n ".join(f'"{name}": "{value}"' for name, value in records)
    return f"{HEAD}{{{lines}}}\n\nKey:"


def _query(name: str, record: Record, position: int, item: str) -> Query:
    asked, value = record
    suffix = f' "{asked}"\nCorresponding value:'
    # bare, quoted, and with the closing quote, which some tokenizers write as one with the last digit
    answers = (f" {value}", f' "{value}', f' "{value}"')
    return Query(name, item, suffix, answers, tags={"position": position})


def _positions(settings: KvSettings, pairs: int) -> list[int]:
    everywhere: Positions | None = "all" if settings.mode == "dense" else None
    return chosen("kv", settings.positions or everywhere, pairs, POSITIONS)


def _example(where: str, row: dict[str, Any], pairs: int) -> Example:
    records = field(where, row, "ordered_kv_records", list)
    asked = [field(where, row, "key"), field(where, row, "value")]
    if len(records) != pairs or asked not in records or any(not isinstance(r, list) or len(r) != 2 for r in records):
        raise SpliceError(f"{where}: not {pairs} records [key, value], that of the key among them; {AGAIN}")
    return Example(tuple((name, value) for name, value in records), records.index(asked))
