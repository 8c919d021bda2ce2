"""`splice train` from its settings to its end: who is there, what will be done, and what went wrong in a sentence."""

from __future__ import annotations

import os

import torch
import yaml
from rich.console import Console
from rich.table import Table

from splice.errors import RESUME_TRAINING, SpliceError, TrainingFailed

from .flops import CONVENTION, flops_per_token, memory_bytes
from .loop import train
from .parallel import World, joined
from .plan import Plan, make_plan
from .settings import TrainSettings


def run(settings: TrainSettings, dry_run: bool, console: Console) -> None:
    """One process's part of a run; torchrun starts several. Raises SpliceError for all that a user can mend."""
    if dry_run:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        show_plan(make_plan(settings, ranks), ranks, console)
        return
    with joined(settings.device, settings.context_parallel) as world:
        try:
            _run(settings, world, console)
        except SpliceError as error:
            if world.first:
                raise
            raise SystemExit(error.exit_code) from None  # one process says it


def _run(settings: TrainSettings, world: World, console: Console) -> None:
    plan = make_plan(settings, world.size)
    if world.first:
        _introduce(plan, world, console)
    try:
        train(plan, world, console)
    except torch.OutOfMemoryError as error:
        held = str(error).split(". ")[0]
        raise TrainingFailed(
            f"out of GPU memory ({held}). A smaller --batch.micro, --recompute, or more GPUs with --context-parallel need "
            f"less; --dry-run estimates how much. {RESUME_TRAINING}"
        ) from error
    except OSError as error:
        raise TrainingFailed(f"{error}. Mend it. {RESUME_TRAINING}") from error


def _introduce(plan: Plan, world: World, console: Console) -> None:
    config, rows = plan.config, plan.rows
    method = (
        f"FoT, memory layers {', '.join(map(str, config.fot.layers))}" if config.fot else plan.settings.context.method
    )
    place = f"{world.size} x {world.device.type}" if world.size > 1 else str(world.device.type)
    console.print(
        f"{config.parameters / 1e6:,.1f}M parameters, {config.length:,} tokens of context ({method}), {len(rows):,} rows of "
        f"{rows.dataset.path}, {plan.settings.steps:,} steps of {plan.settings.batch.size * config.length:,} tokens on {place}",
        highlight=False, markup=False,
    )  # fmt: skip


def show_plan(plan: Plan, ranks: int, console: Console) -> None:
    """--dry-run: the settings as resolved, and what the run costs."""
    console.print(
        yaml.safe_dump(plan.settings.model_dump(mode="json"), sort_keys=False).rstrip(), highlight=False, markup=False
    )
    config, settings = plan.config, plan.settings
    length, tokens = config.length, plan.settings.batch.size * plan.config.length
    total, embedding = config.parameters, config.vocab_size * config.hidden_size * (1 if config.tied else 2)
    half = settings.dtype == "bfloat16" or (
        settings.dtype == "auto" and settings.device != "cpu" and torch.cuda.is_available()
    )
    memory = memory_bytes(
        config, settings.batch.micro, length, ranks, 2 if half else 4, settings.recompute, settings.context_parallel
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rope = config.rope
    rows = {
        "model": f"D {config.hidden_size}, {config.layers} layers, {config.heads} heads ({config.kv_heads} key-value) of {config.head_size}, MLP {config.mlp_size}, vocabulary {config.vocab_size:,}",
        "first weights": str(plan.start) if plan.start else f"random, seed {settings.seed}",
        "parameters, total": f"{total:,}",
        "parameters, active": f"{total:,}",
        "parameters, non-embedding": f"{total - embedding:,}",
        "positions": f"{rope.type}, theta {rope.theta:g}, factor {rope.factor:g}, trained for {rope.original:,}",
        "context": f"{length:,} tokens" + (f"; FoT: memory layers {list(config.fot.layers)}, local {config.fot.local_context:,}, range {config.fot.cross_batch_range}" if config.fot else ""),
        "attention": "within documents" if settings.document_mask else "across documents",
        "rows": f"{len(plan.rows):,} to train on" + (f", {len(plan.validation):,} to evaluate on" if plan.validation else ""),
        "steps": f"{settings.steps:,} of {tokens:,} tokens = {settings.steps * tokens:,} tokens, {settings.steps * settings.batch.size / len(plan.rows):.2f} epochs",
        "FLOPs a token": f"{flops_per_token(config, length):.4g}: {CONVENTION}",
        "of them computed": f"{flops_per_token(config, length, causal=True):.4g}: causal counted once",
        "FLOPs of the run": f"{settings.steps * tokens * flops_per_token(config, length):.3g}",
        "memory a GPU, estimated": f"{sum(memory.values()) / 2**30:.2f} GiB: " + ", ".join(f"{what} {size / 2**30:.2f}" for what, size in memory.items()),
    }  # fmt: skip
    for name, value in rows.items():
        table.add_row(name, value)
    console.print()
    console.print(table, highlight=False)
