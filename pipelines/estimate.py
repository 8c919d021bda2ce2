"""`splice build --dry-run`: the resolved settings, and what the build will about take.

The rates are those of bench/build.py on one core of an AMD EPYC (2.6 GHz base) machine; the estimate is meant to tell
minutes from days, not to be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from rich.console import Console

from splice.settings import BuildSettings

START_CPU_SECONDS = 6.0  # interpreter, Beam, tokenizer: paid once
READ_CPU_SECONDS_PER_FILE = 20e-6
CPU_SECONDS_PER_MB = 0.030  # read, filter, hash, tokenise, index, write
SEARCH_CPU_SECONDS = 6.0e-9  # per pair of a query and a document of its pack, at 700 words a document
EMBED_FLOPS = 130e9  # a second of a core, counted as if all float32 weights multiplied, embedding tables too
WALK_CPU_SECONDS_PER_DOCUMENT = 40e-6
BYTES_PER_DOCUMENT = 7_000  # where a source does not say how many documents it holds
BYTES_PER_TOKEN = 2.7


@dataclass(frozen=True)
class Estimate:
    """What a build will about take: documents, packs, tokens, CPU seconds (of them the encoder's), bytes of memory and of disk."""

    documents: int
    packs: int
    text_bytes: int
    tokens: int
    cpu_seconds: float
    encoder_seconds: float
    memory_bytes: int
    disk_bytes: int


def estimate(
    settings: BuildSettings,
    files: int,
    documents: int,
    text_bytes: int,
    weight_bytes: int = 0,
    dimension: int = 0,
) -> Estimate:
    """From the size of the input, and of the encoder's weights and embeddings; it is taken to run on CPUs.

    Memory is the pack's: text, index, embeddings and one float per document and query of a batch.
    """
    packs = max(1, -(-documents // settings.pack_documents))
    per_pack = documents / packs
    cpu = START_CPU_SECONDS + files * READ_CPU_SECONDS_PER_FILE + text_bytes / 1e6 * CPU_SECONDS_PER_MB
    if settings.has_link and settings.retriever != "dense":
        cpu += documents * per_pack * SEARCH_CPU_SECONDS + documents * WALK_CPU_SECONDS_PER_DOCUMENT
    embedded = documents * min(settings.encoder_tokens, text_bytes / max(documents, 1) / BYTES_PER_TOKEN)
    encoder = embedded * (weight_bytes / 4) * 2 / EMBED_FLOPS
    memory = 400 * 2**20 + int(text_bytes / packs * 1.5 + per_pack * 4 * (128 * settings.worker_count + 600))
    memory += weight_bytes + int(per_pack * dimension * 6)  # float16, and float32 to search in
    tokens = int(text_bytes / BYTES_PER_TOKEN)
    return Estimate(
        documents, packs, text_bytes, tokens, cpu + encoder, encoder, memory, int(text_bytes * 1.1 + tokens * 3.2)
    )


def show_dry_run(settings: BuildSettings, beam_options: Sequence[str], console: Console) -> None:
    """Print the settings as YAML, the estimate as comments: all of it can be saved and given to --config.

    Raises as the build would.
    """
    from splice.sources import plan_units

    from .beam import runner_options
    from .build import check_tokenizer
    from .link import encoder_of
    from .stages import check_retriever, contamination_of, source_settings

    options = runner_options(beam_options, settings.worker_count)
    units = plan_units(settings.sources, source_settings(settings))
    check_retriever(settings, units)
    encoder = encoder_of(settings)
    contamination_of(settings)
    check_tokenizer(settings)
    files = sum(len(names) for unit in units if unit.kind == "tree" for _, names in unit.items[1])
    text_bytes = sum(unit.bytes for unit in units)
    documents = files + sum(max(1, unit.bytes // BYTES_PER_DOCUMENT) for unit in units if unit.kind != "tree")
    model = (encoder.weight_bytes, encoder.dimension or 0) if encoder else (0, 0)
    e = estimate(settings, files, documents, text_bytes, *model)
    lines = [yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False) + f"# runner: {' '.join(options)}"]
    lines.append("# about what it will take, before filters:")
    for name, value in (
        ("sources, read tasks", f"{len({u.source for u in units})}, {len(units)}"),
        ("documents", f"{e.documents:,}"),
        ("text", f"{e.text_bytes / 1e6:,.0f} MB"),
        ("tokens", f"{e.tokens:,}"),
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
