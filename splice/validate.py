"""`splice validate`: proves from a dataset's files alone that it is what its manifest says.

Every check recounts from the shards, the plan, the documents' tables and the quarantine; nothing is taken from the
manifest but what is to be proven, and the work directory is not needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .errors import SpliceError
from .ledger import imbalances, make_ledger
from .seeded import permutation
from .storage import local, local_directory, names
from .store import PackedDataset
from .store.manifest import read_manifest
from .store.shards import Example, file_sha256, read_rows, schema

RETOKENISED_DOCUMENTS = 200
MOST_NAMED = 3  # failures of one kind that are named; the rest are counted


class Failed(Exception):
    """A check that does not hold, in one sentence."""


@dataclass
class Counts:
    """What one pass over the shards found, by source."""

    written: Counter[str] = field(default_factory=Counter)
    separators: Counter[str] = field(default_factory=Counter)
    padding: int = 0
    examples: int = 0


def show_validation(path: Path, console: Console) -> bool:
    """Run every check on the dataset at `path` and print a line each; True when all hold.

    Raises SpliceError where there is no finished dataset.
    """
    held = True
    for name, check in checks(path):
        try:
            console.print(f"[green]ok[/]    {name}: {check()}", highlight=False, soft_wrap=True)
        except (
            Failed,
            SpliceError,
            OSError,
            ValueError,
            LookupError,
            TypeError,
        ) as failure:  # Arrow's errors are the middle two
            held = False
            console.print("[red]fails[/] ", end="")
            console.print(f"{name}: {failure}", highlight=False, markup=False, soft_wrap=True)
    return held


def checks(path: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """The checks in order; later ones lean on what earlier ones read. A dataset that cannot be opened fails the first.

    Raises SpliceError where there is no finished dataset.
    """
    from .mix import KIND
    from .validate_mixture import MixtureProof

    kind = MixtureProof if read_manifest(path).get("kind") == KIND else Proof
    proof: Proof | None = None

    def opened() -> str:
        nonlocal proof
        proof = kind(path)
        return f"{len(proof.dataset):,} examples in {len(proof.dataset.shards):,} shards"

    yield "files", opened
    if proof is not None:
        yield from proof.checks()


class Proof:
    """The checks of one dataset; each gives what it found, or raises Failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dataset = PackedDataset(path)
        self.manifest = self.dataset.manifest
        self.length = self.dataset.length
        self.counts = Counts()

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """The checks in order."""
        yield "checksums", self.checksums
        yield "examples", self.examples
        yield "plan", self.plan
        yield "ledger", self.ledger
        yield "tokens", self.tokens

    def checksums(self) -> str:
        """Every shard has the bytes the manifest names, and there is no other file."""
        listed = {shard["file"]: shard for shard in self.manifest["shards"]}
        found = {name for name in names(self.path / "data") if not name.startswith(".tmp-")}
        if found - set(listed):
            raise Failed(f"data/{min(found - set(listed))} is not in the manifest; remove it")
        for name, shard in listed.items():
            if file_sha256(local(self.path / "data" / name)) != shard["sha256"]:
                raise Failed(f"data/{name} was changed after it was written (sha256 differs); build it again")
        return f"{len(listed)} shards, {sum(s['bytes'] for s in listed.values()):,} bytes"

    def examples(self) -> str:
        """Every example is exactly L tokens, its segments fill it, and it is what the plan says."""
        seen = np.zeros(sum(pack["examples"] for pack in self.manifest["packs"]), bool)
        order = permutation(len(seen), self.manifest["settings"]["seed"], "examples")
        problems = Problems()
        for place, example in enumerate(self._stored()):
            where = f"example {place}"
            if not 0 <= example.number < len(seen) or seen[example.number]:
                problems.add(f"{where} has number {example.number}, which is not of the plan or was there before")
                continue
            seen[example.number] = True
            if example.number != order[place]:
                problems.add(f"{where} has number {example.number}, the seed's order has {order[place]} there")
            problems.add_all(f"{where}: {wrong}" for wrong in self._shape(example))
            problems.add_all(f"{where}: {wrong}" for wrong in self._against_plan(example))
            self._count(example)
        if not seen.all():
            problems.add(f"{int((~seen).sum())} examples of the plan are in no shard")
        problems.stop()
        return f"{self.counts.examples:,} of exactly {self.length:,} tokens, {self.counts.padding:,} of them padding"

    def plan(self) -> str:
        """Every document is in the plan at most once, its pieces follow each other, none reaches past its end."""
        problems = Problems()
        documents = reuses = segments = 0
        for number in range(len(self.manifest["packs"])):
            plan, table = self._plans[number], self._documents[number]
            document, begin, end = plan["document"], plan["begin"], plan["end"]
            sequence = table["tokens"] + self._separators_of_a_document
            order = np.lexsort((begin, plan["example"], document))
            d, b, e = document[order], begin[order], end[order]
            new = np.ones(len(d), bool)  # where a use of a document begins
            new[1:] = (d[1:] != d[:-1]) | (b[1:] == 0)
            if (b[new] != 0).any() or (b[~new] != e[:-1][~new[1:]]).any() or (e < b).any() or (e > sequence[d]).any():
                problems.add(f"pack {number}: pieces of a document overlap, leave a gap or reach past its end")
            uses = np.bincount(d[new], minlength=len(sequence))
            most = self.manifest["settings"].get("max_uses", 1)
            if (uses > most).any():
                problems.add(
                    f"pack {number}: document {np.flatnonzero(uses > most)[0]} is used more than {_times(most)}"
                )
            if self.manifest["settings"]["tail"] != "carry" and not new.all():
                problems.add(f"pack {number}: document {d[~new][0]} is in pieces, which only tail=carry makes")
            missing = np.ones(len(sequence), bool)
            missing[d] = False
            may_miss = sequence > self.length if self.manifest["settings"]["tail"] == "whole" else sequence == 0
            if (missing & ~may_miss).any():
                problems.add(f"pack {number}: document {np.flatnonzero(missing & ~may_miss)[0]} is in no example")
            last = np.append(new[1:], True)
            if (
                self.manifest["settings"]["tail"] == "carry"
                and (e[last[: len(e)]] != sequence[d[last[: len(d)]]]).any()
            ):
                problems.add(f"pack {number}: the end of a document is lost, which tail=carry never does")
            if self.manifest["settings"]["tail"] == "whole" and (e != sequence[d]).any():
                problems.add(f"pack {number}: a document is cut, which tail=whole never does")
            documents += int((uses > 0).sum())
            reuses += int(np.maximum(uses - 1, 0).sum())
            segments += len(d)
        problems.stop()
        each = f"{reuses:,} of them again" if reuses else "each used once"
        return f"{documents:,} documents, {each}, in {segments:,} segments"

    def ledger(self) -> str:
        """The ledger, counted again from the files, balances and is the manifest's."""
        import pyarrow.parquet as pq

        refused = pq.read_table(local(self.path / "documents" / "refused.parquet"), columns=["source", "reason"])
        quarantined: Counter[str] = Counter(line["source"] for line in self._quarantine())
        kept: Counter[str] = Counter()
        tokenised, plans = [], []
        for number, table in enumerate(self._documents):
            plan = self._plans[number]
            written = self._written_tokens(number)
            for code, source in enumerate(table["sources"]):
                mine = table["source"] == code
                pieces = np.bincount(plan["document"], minlength=len(mine))
                uses = np.bincount(plan["document"][plan["begin"] == 0], minlength=len(mine))
                planned, again = pieces > 0, np.maximum(uses - 1, 0)
                n = table["tokens"]
                counts = {"documents": int(mine.sum()), "tokens": int(n[mine].sum())}
                fates = {
                    "left_out_documents": int((mine & ~planned).sum()),
                    "left_out_tokens": int(n[mine & ~planned].sum()),
                    "trimmed_tokens": int((n * uses - written)[mine].sum()),
                    "split_documents": int((pieces > uses)[mine].sum()),
                    "reuses": int(again[mine].sum()),
                    "reused_tokens": int((n * again)[mine].sum()),
                }
                kept[source] += counts["documents"]
                tokenised.append({"by_source": {source: counts}})
                plans.append({"by_source": {source: fates}})
        reasons = refused.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist()
        pairs = Counter({(row["source"], row["reason"]): row["count_all"] for row in reasons})
        dropped: Counter[str] = Counter()
        for (source, _), count in pairs.items():
            dropped[source] += count
        read = [
            {"source": s, "documents": kept[s] + dropped[s] + quarantined[s], "quarantined": quarantined[s]}
            for s in self.manifest["ledger"]["sources"]
        ]
        c = self.counts
        shard = {
            "examples": c.examples,
            "padding": c.padding,
            "by_source": {
                s: {"written_tokens": c.written[s], "separators": c.separators[s]} for s in sorted(c.written)
            },
        }
        recounted = make_ledger(self.length, read, pairs, tokenised, plans, [shard])
        wrong = imbalances(recounted)
        if wrong:
            raise Failed("; ".join(wrong))
        for name, stated in self.manifest["ledger"]["sources"].items():
            for figure, value in stated.items():
                if recounted["sources"][name][figure] != value:
                    raise Failed(
                        f"source {name}: {figure} is {recounted['sources'][name][figure]}, manifest says {value}"
                    )
        for figure in ("examples", "tokens", "padding"):
            if recounted[figure] != self.manifest["ledger"][figure]:
                raise Failed(f"{figure} is {recounted[figure]}, manifest says {self.manifest['ledger'][figure]}")
        return f"{sum(r['documents'] for r in read):,} documents in, all accounted for; tokens balance to the last"

    def tokens(self) -> str:
        """A sample of whole documents, decoded and tokenised by the reference tokenizer, gives the stored ids."""
        from .tokenizer import load_tokenizer

        tokenizer = load_tokenizer(str(local_directory(self.path / "tokenizer")), fast=False)
        if tokenizer.fingerprint != self.manifest["tokenizer"]["fingerprint"]:
            raise Failed("tokenizer/ is not the one the dataset was made with (fingerprint differs)")
        checked = unknown = 0
        for index, name, ids in self._whole_documents():
            if tokenizer.unk_id is not None and (ids == tokenizer.unk_id).any():
                unknown += 1  # its text is not in its ids
                continue
            again, _ = tokenizer.encode_reference([tokenizer.decode(ids).encode()])
            if not np.array_equal(again, ids):
                raise Failed(f"example {index}: {name} gives other ids with {tokenizer.name}")
            checked += 1
            if checked == RETOKENISED_DOCUMENTS:
                break
        if not checked:
            why = f"all {unknown} that do hold the unknown token" if unknown else "none does"
            return f"not checked: it takes documents that lie whole in an example, and {why}"
        passed_over = f" ({unknown} that hold the unknown token passed over)" if unknown else ""
        return f"{checked} documents tokenised again by the reference give the same ids{passed_over}"

    def _whole_documents(self) -> Iterator[tuple[int, str, np.ndarray]]:
        """Example, id and tokens of the documents that lie whole in an example, the examples in a seeded order."""
        for index in permutation(len(self.dataset), 0, "retokenise").tolist():
            example = self.dataset[index]
            for i, name in enumerate(example.doc_ids):
                ids = self._whole_document(example, i)
                if ids is not None:
                    yield index, name, ids

    def _shape(self, example: Example) -> Iterator[str]:
        """What is wrong with an example on its own."""
        ids = example.input_ids
        if len(ids) != self.length:
            yield f"{len(ids)} tokens, not {self.length}"
            return
        if not 0 <= example.padding <= self.length or (ids[self.length - example.padding :] != self._pad).any():
            yield f"its last {example.padding} tokens are not all padding"
        if ids.min() < 0 or ids.max() >= max(self.manifest["tokenizer"]["vocab_size"], self._pad + 1):
            yield "an id outside the vocabulary"
        lengths = example.ends - example.doc_offsets
        if len(lengths) and (example.doc_offsets[0] != 0 or (lengths <= 0).any()):
            yield "its segments leave a gap or overlap"
        if not len(lengths) and example.padding != self.length:
            yield "tokens that belong to no document"

    def _against_plan(self, example: Example) -> Iterator[str]:
        """What differs between an example and its rows of the plan."""
        first = self._first_example
        pack = int(np.searchsorted(first, example.number, side="right")) - 1
        plan, table = self._plans[pack], self._documents[pack]
        a, b = plan["starts"][example.number - first[pack] :][:2]
        rows = np.arange(a, b)[plan["end"][a:b] > plan["begin"][a:b]]
        document = plan["document"][rows]
        before = self._bos is not None
        n = table["tokens"][document]
        spans = np.stack([np.clip(plan[c][rows] - before, 0, n) for c in ("begin", "end")], axis=1)
        scores = plan["score"][rows]
        if example.pack != pack or example.doc_ids != table["id"].take(document).to_pylist():
            yield "its documents are not the plan's"
            return
        if not np.array_equal(example.doc_offsets, plan["offset"][rows]) or not np.array_equal(
            example.doc_spans, spans
        ):
            yield "its offsets or spans are not the plan's"
            return
        if not np.array_equal(example.ends - example.doc_offsets, plan["end"][rows] - plan["begin"][rows]):
            yield "a segment is longer or shorter than planned"
        place = {int(d): i for i, d in enumerate(document)}
        parents = [place.get(int(p), -1) for p in plan["parent"][rows]]
        if example.parents.tolist() != parents or not np.array_equal(example.scores, scores, equal_nan=True):
            yield "its parents or scores are not the plan's"
        yield from self._separators(example, plan, rows, n)

    def _separators(
        self, example: Example, plan: dict[str, np.ndarray], rows: np.ndarray, n: np.ndarray
    ) -> Iterator[str]:
        """Separators stand where a document begins and ends, and no text yields one."""
        opens, closes = plan["begin"][rows] == 0, plan["end"][rows] == n + self._separators_of_a_document
        ids = example.input_ids
        if self._bos is not None and (ids[example.doc_offsets[opens]] != self._bos).any():
            yield "a document does not start with BOS"
        if self._eos is not None and (ids[example.ends[closes] - 1] != self._eos).any():
            yield "a document does not end with EOS"
        written = ids[: self.length - example.padding]
        expected: Counter[int] = Counter()
        if self._bos is not None:
            expected[self._bos] += int(opens.sum())
        if self._eos is not None:
            expected[self._eos] += int(closes.sum())
        for special, count in expected.items():
            if int((written == special).sum()) != count:
                yield f"special token {special} stands {int((written == special).sum())} times, expected {count}"

    def _count(self, example: Example) -> None:
        own = example.doc_spans[:, 1] - example.doc_spans[:, 0]
        lengths = example.ends - example.doc_offsets
        for source, text, size in zip(example.sources, own.tolist(), lengths.tolist(), strict=True):
            self.counts.written[source] += text
            self.counts.separators[source] += size - text
        self.counts.padding += example.padding
        self.counts.examples += 1

    def _stored(self) -> Iterator[Example]:
        for name in self.dataset.shards:
            yield from self._examples_of(name)

    def _examples_of(self, name: str) -> Iterator[Example]:
        """The examples of one shard."""
        import pyarrow.parquet as pq

        file = pq.ParquetFile(local(self.path / "data" / name), memory_map=True)
        if not file.schema_arrow.equals(schema()):
            raise Failed(f"data/{name}: its columns are not those of a dataset")
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            yield from read_rows(table, range(table.num_rows))

    def _whole_document(self, example: Example, i: int) -> np.ndarray | None:
        """The ids of a document that is whole in this example, without separators; None for a piece."""
        start, end = int(example.doc_offsets[i]), int(example.ends[i])
        a, b = example.doc_spans[i].tolist()
        if a != 0 or end - start != b - a + self._separators_of_a_document:
            return None
        start += self._bos is not None
        return example.input_ids[start : start + b - a]

    def _written_tokens(self, number: int) -> np.ndarray:
        """int64 [N]: own tokens of each document of a pack that the plan writes."""
        plan, n = self._plans[number], self._documents[number]["tokens"]
        before = self._bos is not None
        begin, end = (np.clip(plan[c] - before, 0, n[plan["document"]]) for c in ("begin", "end"))
        return np.bincount(plan["document"], weights=end - begin, minlength=len(n)).astype(np.int64)

    def _quarantine(self) -> Iterator[dict[str, Any]]:
        import json

        with open(local(self.path / "quarantine.jsonl"), encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    @cached_property
    def _plans(self) -> list[dict[str, np.ndarray]]:
        """`read_plan` of each pack, in half the memory: these are of the whole dataset."""
        from .stages.plan import read_plan

        def narrow(column: np.ndarray) -> np.ndarray:
            narrowed = column.astype(np.int32) if column.dtype == np.int64 else column
            return narrowed if np.array_equal(narrowed, column, equal_nan=True) else column

        packs = range(len(self.manifest["packs"]))
        return [{name: narrow(column) for name, column in read_plan(self.path, p).items()} for p in packs]

    @cached_property
    def _documents(self) -> list[dict[str, Any]]:
        """Of each pack: id (Arrow strings [N]), source (int32 [N], a place in `sources`), sources (names), tokens (int64 [N])."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = []
        for number, pack in enumerate(self.manifest["packs"]):
            paths = [self.path / "documents" / f"{number:05d}-{part:04d}.parquet" for part in range(pack["parts"])]
            columns = ["id", "source", "tokens"]
            table = pa.concat_tables([pq.ParquetFile(local(p)).read(columns=columns) for p in paths])
            if table.num_rows != pack["documents"]:
                raise Failed(f"documents/ of pack {number}: {table.num_rows} documents listed, not {pack['documents']}")
            source = table.column("source").combine_chunks().dictionary_encode()
            tables.append(
                {
                    "id": table.column("id").combine_chunks(),
                    "source": source.indices.to_numpy(),
                    "sources": source.dictionary.to_pylist(),
                    "tokens": table.column("tokens").to_numpy(),
                }
            )
        return tables

    @cached_property
    def _first_example(self) -> np.ndarray:
        return np.cumsum([0] + [pack["examples"] for pack in self.manifest["packs"]])

    @property
    def _bos(self) -> int | None:
        return self.manifest["join"]["bos_id"]

    @property
    def _eos(self) -> int | None:
        return self.manifest["join"]["eos_id"]

    @property
    def _separators_of_a_document(self) -> int:
        return (self._bos is not None) + (self._eos is not None)

    @property
    def _pad(self) -> int:
        return self.manifest["tokenizer"]["pad_id"]


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


class Problems:
    """Collects what is wrong, and says the first few of it at once."""

    def __init__(self) -> None:
        self.named: list[str] = []
        self.count = 0

    def add(self, problem: str) -> None:
        self.count += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(problem)

    def add_all(self, problems: Iterator[str]) -> None:
        for problem in problems:
            self.add(problem)

    def stop(self) -> None:
        """Raise Failed if there was any."""
        if self.count:
            more = f" (and {self.count - len(self.named)} more)" if self.count > len(self.named) else ""
            raise Failed("; ".join(self.named) + more)
