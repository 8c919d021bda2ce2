"""`splice plan`: what a build of a corpus that is not here would take on so many workers, and what stands in its way."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from splice.errors import SpliceError
from splice.settings import BuildSettings

from . import rates
from .capacity import (
    SCATTERED,
    Corpus,
    EncoderSize,
    Packs,
    StageCost,
    driver_bytes,
    driver_seconds,
    stage_costs,
)
from .plan_options import COUNTS, SETTINGS, count

MUCH_MEMORY = 16 * 10**9
LONG_SECONDS = 3600.0
MANY_TASKS = 10**6
MOST_PACK_DOCUMENTS = 2**22  # of `splice build`
BERT = EncoderSize(440_000_000, 768)  # the size of the default encoder, and of most
ASSIGN = "assign is one task over the whole corpus"


@dataclass(frozen=True)
class Plan:
    """A reckoning. workers: cores, a task each at a time; basis: what the rates were measured on."""

    settings: BuildSettings
    corpus: Corpus
    workers: int
    encoder: EncoderSize | None
    basis: str

    @cached_property
    def stages(self) -> list[StageCost]:
        return stage_costs(self.settings, self.corpus, self.encoder, apart=self.workers > 1)

    @cached_property
    def packs(self) -> Packs:
        return Packs.of(self.settings, self.corpus)

    @property
    def driver_seconds(self) -> float:
        return driver_seconds(self.stages)

    @property
    def driver_bytes(self) -> int:
        return driver_bytes(self.stages)

    @property
    def cpu_seconds(self) -> float:
        return sum(s.cpu_seconds for s in self.stages) + self.driver_seconds + rates.START_WORKER * self.workers

    @property
    def wall_seconds(self) -> float:
        """The stages one after the other, and what the command itself does between them."""
        return sum(s.wall_seconds(self.workers) for s in self.stages) + self.driver_seconds + rates.START_WORKER

    @property
    def longest(self) -> StageCost:
        return max(self.stages, key=lambda stage: stage.longest_seconds)

    @property
    def largest(self) -> StageCost:
        """The stage that needs most memory by its pack; assign is apart, one task that no pack bounds."""
        return max((s for s in self.stages if s.name != "assign"), key=lambda stage: stage.memory_bytes)

    @property
    def kept_bytes(self) -> int:
        """Of plan, graph and documents, which the output has as well: hard links on one file system, else copies."""
        written = {s.name: s.written_bytes for s in self.stages}
        return written.get("search", 0) + written["walk"] + rates.PROVENANCE_DOCUMENT * self.corpus.documents

    @property
    def work_bytes(self) -> int:
        """At its fullest: what was read is removed once it is in packs, and takes less than what comes after."""
        later = sum(s.written_bytes for s in self.stages if s.name not in ("read", "write", "gather"))
        written = {s.name: s.written_bytes for s in self.stages}
        return written["gather"] + max(written["read"], later)

    @property
    def output_bytes(self) -> int:
        return self.stages[-1].written_bytes + self.kept_bytes

    @property
    def moved_bytes(self) -> int:
        return sum(stage.read_bytes for stage in self.stages)

    @property
    def fetched_bytes(self) -> int:
        return sum(stage.fetched_bytes for stage in self.stages)


def show_plan(flags: dict[str, Any], console: Console) -> None:
    """Reckon what the command line asks for and print it. Raises SpliceError for what it cannot mean."""
    as_json = flags.pop("json")
    plan = make_plan(flags, console if not as_json else Console(stderr=True))
    if as_json:
        print(json.dumps(as_values(plan), indent=1))
        return
    console.print(stage_table(plan))
    for line in summary(plan):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for warning in warnings(plan):
        console.print(f"! {warning}", highlight=False, markup=False, soft_wrap=True)


def make_plan(flags: dict[str, Any], console: Console) -> Plan:
    """flags: documents, mean_chars, workers, measure, pack_documents, encoder_parameters, encoder_dimension and settings."""
    counts = {name: count(flags.pop(name), f"--{name.replace('_', '-')}") for name in COUNTS}
    source = flags.pop("measure")
    if not counts["documents"]:
        raise SpliceError("no corpus: say how many documents with --documents, as 1e9, 20k or 3.5M")
    if not (counts["mean_chars"] or source):
        raise SpliceError(
            "how long are they? give --mean-chars 5000, or --measure SRC to take it from a sample of yours"
        )
    from splice.settings import resolve

    settings = resolve({**flags, "sources": [source or "planned"], "output": "planned"}, None)
    if counts["pack_documents"]:
        settings = settings.model_copy(update={"pack_documents": counts["pack_documents"]})
    encoder = None
    if settings.has_encoder:
        encoder = EncoderSize(
            4 * (counts["encoder_parameters"] or BERT.weight_bytes // 4), counts["encoder_dimension"] or BERT.dimension
        )
    documents, chars = counts["documents"], counts["mean_chars"]
    if source:
        from .sample import measure

        sample = measure(settings, source, encoder, console)
        text = int(documents * (chars or sample.mean_bytes))
        corpus, basis = replace(sample.corpus, documents=documents, text_bytes=text, files=0), sample.basis
    else:
        corpus, basis = Corpus(documents, documents * (chars or 0)), rates.MACHINE
    return Plan(settings, corpus, counts["workers"] or settings.worker_count, encoder, basis)


def stage_table(plan: Plan) -> Table:
    """A line a stage."""
    table = Table(box=box.SIMPLE, pad_edge=False, title=f"{plan.settings.retriever}, {plan.workers:,} workers")
    table.add_column("stage", no_wrap=True)
    for name in ("tasks", "longest", "CPU", "wall", "memory", "reads", "leaves"):
        table.add_column(name, justify="right", no_wrap=True)
    for s in plan.stages:
        sizes = [size(value) if value else "" for value in (s.memory_bytes, s.read_bytes, s.written_bytes)]
        seconds = [clock(s.longest_seconds), hours(s.cpu_seconds), clock(s.wall_seconds(plan.workers))]
        table.add_row(s.name, f"{s.tasks:,}", *seconds, *sizes)
    driver = clock(plan.driver_seconds + rates.START_WORKER)
    started = plan.driver_seconds + rates.START_WORKER * plan.workers
    table.add_row("driver", "", "", hours(started), driver, size(plan.driver_bytes), "", "")
    tasks = sum(s.tasks for s in plan.stages)
    table.add_section()
    table.add_row(
        "all", f"{tasks:,}", clock(plan.longest.longest_seconds), hours(plan.cpu_seconds), clock(plan.wall_seconds),
        size(plan.largest.memory_bytes), size(plan.moved_bytes), size(plan.work_bytes + plan.output_bytes),
    )  # fmt: skip
    return table


def summary(plan: Plan) -> list[str]:
    """The corpus, and what is taken for granted."""
    c, packs = plan.corpus, plan.packs
    lines = [
        f"corpus:  {c.documents:,} documents, {size(c.text_bytes)}, {short(c.tokens)} tokens ({c.tokens_per_byte:.2f} a byte)",
        f"packs:   {packs.count:,} of {packs.documents:,.0f} documents, {size(packs.text_bytes)} of text",
        f"dataset: {packs.examples:,} examples of {plan.settings.length:,} tokens at most, {packs.shards:,} shards",
        f"storage: work {size(plan.work_bytes)} at its fullest, output {size(plan.output_bytes)} (of it {size(plan.kept_bytes)}"
        " hard links to work on one file system)",
        f"moved:   {size(plan.moved_bytes)} are read that other tasks wrote, {size(plan.moved_bytes / plan.wall_seconds)}/s over"
        f" the whole time; from an object store, which gives whole files, up to {size(plan.fetched_bytes)}",
        f"rates:   {plan.basis}",
        f"assumed: tasks of a stage alike, {'' if plan.settings.pack_by in SCATTERED else 'packs in the order of the input, '}"
        "no document refused, every core as fast as that one, stages one after the other, no wait for storage",
    ]
    if plan.encoder:
        size_ = f"{short(plan.encoder.weight_bytes // 4)} parameters, {plan.encoder.dimension} dimensions"
        lines.append(f"encoder: {size_}, on CPUs; a GPU takes a small part of that time")
    return lines


def warnings(plan: Plan) -> list[str]:
    """What is alarming, each with its remedy."""
    found = []
    s, largest, assign = plan.settings, plan.largest, plan.stages[1]
    if s.pack_documents > MOST_PACK_DOCUMENTS:
        found.append(f"a build takes --pack-documents up to {MOST_PACK_DOCUMENTS:,}; this shows what more would cost")
    if largest.memory_bytes > MUCH_MEMORY:
        beyond = largest.memory_bytes - rates.PROCESS_BYTES
        fits = int(plan.packs.documents * (MUCH_MEMORY - rates.PROCESS_BYTES) / beyond)
        found.append(
            f"a pack of {plan.packs.documents:,.0f} documents needs {size(largest.memory_bytes)} in stage {largest.name}; "
            f"--pack-documents {fits} needs {size(MUCH_MEMORY)}"
        )
    if assign.memory_bytes > MUCH_MEMORY:
        found.append(
            f"{ASSIGN} and holds {size(assign.memory_bytes)}; {_several(plan, assign.memory_bytes / MUCH_MEMORY)}"
        )
    for stage in plan.stages:
        if stage.longest_seconds > LONG_SECONDS:
            times = stage.longest_seconds / LONG_SECONDS
            remedy = _several(plan, times) if stage.name == "assign" else _shorter(plan, stage)
            found.append(f"a task of {stage.name} takes {clock(stage.longest_seconds)}; {remedy}")
    tasks = sum(stage.tasks for stage in plan.stages)
    if tasks > MANY_TASKS:
        most = max(plan.stages, key=lambda stage: stage.tasks)
        found.append(
            f"{tasks:,} tasks, each with a receipt that the driver reads ({most.name} has {most.tasks:,}); "
            + _several(plan, tasks / MANY_TASKS)
        )
    waiting = plan.longest.longest_seconds
    if plan.workers > 1 and waiting > plan.wall_seconds / 2:
        found.append(
            f"the longest task, of {plan.longest.name}, takes {waiting / plan.wall_seconds:.0%} of the whole time; "
            "more workers hardly help"
        )
    return found


def _several(plan: Plan, times: float) -> str:
    """The remedy where the corpus is too large for one build. Nothing is compared across builds."""
    parts = int(times) + 1
    each = plan.corpus.documents // parts
    return f"make {parts:,} builds of {each:,} documents, with one --tokenizer, and join them with `splice mix` (duplicates are found within each)"


def _shorter(plan: Plan, stage: StageCost) -> str:
    if stage.name in ("index", "walk", "search"):
        return f"smaller packs make it shorter: --pack-documents below {plan.packs.documents:,.0f}"
    if stage.name == "write":
        return "smaller shards make it shorter: --shard-tokens"
    return "it is bound by the size of a file or a block, so look at the length of the documents"


def as_values(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values: seconds and bytes."""
    totals = (
        "cpu_seconds", "wall_seconds", "driver_seconds", "driver_bytes", "work_bytes", "output_bytes", "moved_bytes",
        "fetched_bytes",
    )  # fmt: skip
    return {
        "settings": {name: getattr(plan.settings, name) for name in (*SETTINGS, "pack_documents")},
        "workers": plan.workers,
        "corpus": {**asdict(plan.corpus), "tokens": plan.corpus.tokens},
        "encoder": plan.encoder and asdict(plan.encoder),
        "packs": asdict(plan.packs),
        "stages": [{**asdict(s), "wall_seconds": s.wall_seconds(plan.workers)} for s in plan.stages],
        "worker_memory_bytes": plan.largest.memory_bytes,
        **{name: getattr(plan, name) for name in totals},
        "rates": plan.basis,
        "warnings": warnings(plan),
    }


def size(number: float) -> str:
    """Bytes: 12 MB."""
    return _scaled(number, ("B", "kB", "MB", "GB", "TB", "PB", "EB"), " ")


def short(number: float) -> str:
    """A count: 1.8T."""
    return _scaled(number, ("", "k", "M", "G", "T"), "")


def _scaled(number: float, units: tuple[str, ...], between: str) -> str:
    step = 0
    while number >= 999.5 and step < len(units) - 1:
        number, step = number / 1000, step + 1
    digits = 1 if 0 < number < 9.95 and step else 0
    return f"{number:,.{digits}f}{between}{units[step]}"


def clock(seconds: float) -> str:
    """A time: 0.4 s, 12 min, 3.1 h, 9.5 days."""
    for unit, step in (("s", 120), ("min", 120), ("h", 72)):
        if seconds < step:
            return f"{seconds:.{2 if seconds < 0.1 else 1}f} {unit}" if seconds < 9.95 else f"{seconds:,.0f} {unit}"
        seconds /= {"s": 60, "min": 60, "h": 24}[unit]
    return f"{seconds:,.0f} days"


def hours(seconds: float) -> str:
    """CPU time: hours, however many."""
    if seconds < 7200:
        return clock(seconds)
    return f"{short(seconds / 3600)} h" if seconds > 3.6e8 else f"{seconds / 3600:,.{1 if seconds < 36000 else 0}f} h"
