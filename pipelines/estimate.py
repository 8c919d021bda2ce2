"""`splice build --dry-run`: the resolved settings, and what the build will about take on this machine.

The estimate is meant to tell minutes from days, not to be exact; `splice plan` says more, of corpora that are not here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from rich.console import Console

from splice.settings import BuildSettings
from splice.sources import Unit

from .capacity import Corpus, EncoderSize, Packs, documents_of, driver_seconds, local_bytes, stage_costs


@dataclass(frozen=True)
class Estimate:
    """What a build will about take: CPU seconds (of them the encoder's), bytes of memory and of disk."""

    corpus: Corpus
    packs: int
    cpu_seconds: float
    encoder_seconds: float
    memory_bytes: int
    disk_bytes: int


def estimate(settings: BuildSettings, units: Sequence[Unit], encoder: EncoderSize | None = None) -> Estimate:
    """From the size of the input; the encoder is taken to run on CPUs. Disk is the work directory's and the output's."""
    files = sum(documents_of(unit) for unit in units if unit.kind == "tree")
    documents = sum(documents_of(unit) for unit in units)
    corpus = Corpus(documents, sum(unit.bytes for unit in units), files)
    stages = stage_costs(settings, corpus, encoder, apart=False)
    return Estimate(
        corpus,
        Packs.of(settings, corpus).count,
        sum(stage.cpu_seconds for stage in stages) + driver_seconds(stages),
        sum(stage.cpu_seconds for stage in stages if stage.name == "embed"),
        local_bytes(settings, corpus, encoder),
        sum(stage.written_bytes for stage in stages if stage.name != "read"),
    )


def show_dry_run(settings: BuildSettings, beam_options: Sequence[str], console: Console) -> None:
    """Print the settings as YAML, the estimate as comments: all of it can be saved and given to --config.

    Raises as the build would.
    """
    from splice.sources import plan_units

    from .build import check_tokenizer
    from .link import encoder_of
    from .runners import runner_options
    from .stages import check_retriever, contamination_of, source_settings

    options = runner_options(beam_options, settings.worker_count)
    units = plan_units(settings.sources, source_settings(settings))
    check_retriever(settings, units)
    encoder = encoder_of(settings)
    contamination_of(settings)
    check_tokenizer(settings)
    e = estimate(settings, units, encoder and EncoderSize(encoder.weight_bytes, encoder.dimension or 0))
    lines = [yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False) + f"# runner: {' '.join(options)}"]
    lines.append("# about what it will take, before filters:")
    for name, value in (
        ("sources, read tasks", f"{len({u.source for u in units})}, {len(units)}"),
        ("documents", f"{e.corpus.documents:,}"),
        ("text", f"{e.corpus.text_bytes / 1e6:,.0f} MB"),
        ("tokens", f"{e.corpus.tokens:,}"),
        ("packs", f"{e.packs:,}"),
        (
            "CPU time",
            f"{e.cpu_seconds:,.0f} s ({e.cpu_seconds / settings.worker_count:,.0f} s on {settings.worker_count} workers)",
        ),
        *([("  of it the encoder's", f"{e.encoder_seconds:,.0f} s, without a GPU")] if encoder else []),
        ("memory", f"{e.memory_bytes / 2**30:.1f} GiB"),
        ("disk, work included", f"{e.disk_bytes / 2**30:.1f} GiB"),
    ):
        lines.append(f"#   {name:<20}{value:>26}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
