"""`splice train` from its settings to its end: who is there, what will be done, and what went wrong in a sentence."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch
import yaml
from rich.console import Console
from rich.table import Table

from splice.errors import RESUME_TRAINING, Interrupted, SpliceError, TrainingFailed
from splice.lock import locked

from .experts.resolve import OWN
from .flops import CONVENTION, flops_per_token, memory_bytes, scaling_law_flops_per_token
from .hf_config import beyond_mixtral
from .loop import train
from .model import ModelConfig
from .parallel import Everywhere, World, joined
from .plan import Plan, make_plan
from .settings import TrainSettings


def run(settings: TrainSettings, dry_run: bool, console: Console) -> None:
    """One process's part of a run; torchrun starts several. Raises SpliceError for all that a user can mend."""
    if dry_run:
        least = math.lcm(settings.context_parallel, settings.expert_parallel)  # where it is not torchrun that plans
        ranks = int(os.environ.get("WORLD_SIZE", least))
        show_plan(make_plan(settings, ranks), ranks, console)
        return
    with joined(settings.device, settings.context_parallel) as world, _said_once(world):
        plan = _agreed(settings, world)
        with locked(plan.output, "training") if world.first else nullcontext():
            if world.first:
                _introduce(plan, world, console)
            world.wait()  # nobody writes before everybody has looked
            try:
                train(plan, world, console)
            except torch.OutOfMemoryError as error:
                held = str(error).split(". ")[0]
                raise TrainingFailed(
                    f"out of GPU memory ({held}). A smaller --batch.micro, --recompute, or more GPUs with --context-parallel "
                    f"need less; --dry-run estimates how much. {RESUME_TRAINING}"
                ) from error
            except OSError as error:
                where = f"{error.filename}: " if error.filename else ""
                raise TrainingFailed(f"{where}{error.strerror or error}. {RESUME_TRAINING}") from error
            except KeyboardInterrupt:
                raise Interrupted(f"stopped at once. {RESUME_TRAINING}") from None


@contextmanager
def _said_once(world: World) -> Iterator[None]:
    """What all ranks raise the first one says; what one rank alone raises, that one, by its number."""
    try:
        yield
    except SpliceError as error:
        if world.first:
            raise
        if not isinstance(error, Everywhere):
            print(f"splice: rank {world.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # at once: the process group would wait for the others, and torchrun ends them


def _agreed(settings: TrainSettings, world: World) -> Plan:
    """The plan, which every rank makes and which must be one; where it fails on any rank, the first of these says why."""
    plan, wrong = None, None
    try:
        plan = make_plan(settings, world.size)
    except SpliceError as error:
        wrong = error
    failed = (
        world.gather(torch.tensor([wrong is not None], dtype=torch.int32, device=world.device))
        .nonzero()
        .flatten()
        .tolist()
    )
    if failed:
        if world.rank == failed[0] and not world.first:
            print(f"splice: rank {world.rank}: {wrong}", file=sys.stderr, flush=True)
        if world.rank == failed[0] and world.first and wrong is not None:
            raise wrong
        raise SystemExit(2)
    assert plan is not None
    last = -1 if plan.last is None else int(plan.last.name.removeprefix("step-"))
    steps = world.gather(torch.tensor([last], device=world.device)).tolist()
    if len(set(steps)) > 1:
        raise Everywhere(
            f"{plan.output}: ranks see different last checkpoints, of steps {sorted(set(steps))}; wait for the file system to agree, and "
            "start again"
        )
    return plan


def _introduce(plan: Plan, world: World, console: Console) -> None:
    config, rows = plan.config, plan.rows
    sizes = f"{config.parameters / 1e6:,.1f}M parameters"
    if config.experts:
        sizes += f" ({config.active_parameters / 1e6:,.1f}M active)"
    method = (
        f"FoT, memory layers {', '.join(map(str, config.fot.layers))}" if config.fot else plan.settings.context.method
    )
    place = f"{world.size} x {world.device.type}" if world.size > 1 else str(world.device.type)
    console.print(
        f"{sizes}, {config.length:,} tokens of context ({method}), {len(rows):,} rows of "
        f"{rows.dataset.path}, {plan.settings.steps:,} steps of {plan.settings.batch.size * config.length:,} tokens on {place}",
        highlight=False, markup=False,
    )  # fmt: skip


def show_plan(plan: Plan, ranks: int, console: Console) -> None:
    """--dry-run: the settings as resolved, and what the run costs."""
    console.print(
        yaml.safe_dump(plan.settings.model_dump(mode="json", exclude_none=True), sort_keys=False).rstrip(),
        highlight=False,
        markup=False,
    )
    config, settings = plan.config, plan.settings
    length, tokens = config.length, plan.settings.batch.size * plan.config.length
    total, embedding = config.parameters, config.vocab_size * config.hidden_size * (1 if config.tied else 2)
    half = settings.dtype == "bfloat16" or (
        settings.dtype == "auto" and settings.device != "cpu" and torch.cuda.is_available()
    )
    memory = memory_bytes(
        config,
        settings.batch.micro,
        length,
        ranks,
        2 if half else 4,
        settings.recompute,
        settings.context_parallel,
        settings.expert_parallel,
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rope = config.rope
    rows = {
        "model": f"D {config.hidden_size}, {config.layers} layers, {config.heads} heads ({config.kv_heads} key-value) of {config.head_size}, MLP {config.mlp_size}, vocabulary {config.vocab_size:,}",
        "first weights": str(plan.start) if plan.start else f"random, seed {settings.seed}",
        "parameters, total": f"{total:,}",
        "parameters, active": f"{config.active_parameters:,}",
        "parameters, non-embedding": f"{total - embedding:,}",
        "positions": f"{rope.type}, theta {rope.theta:g}, factor {rope.factor:g}, trained for {rope.original:,}",
        "context": f"{length:,} tokens" + (f"; FoT: memory layers {list(config.fot.layers)}, local {config.fot.local_context:,}, range {config.fot.cross_batch_range}" if config.fot else ""),
        "attention": "within documents" if settings.document_mask else "across documents",
        "rows": f"{len(plan.rows):,} to train on" + (f", {len(plan.validation):,} to evaluate on" if plan.validation else ""),
        "steps": f"{settings.steps:,} of {tokens:,} tokens = {settings.steps * tokens:,} tokens, {settings.steps * settings.batch.size / len(plan.rows):.2f} epochs",
        "FLOPs a token": f"{flops_per_token(config, length):.4g}: {CONVENTION}",
        "of them computed": f"{flops_per_token(config, length, causal=True):.4g}: causal counted once",
        "FLOPs of the run": f"{settings.steps * tokens * flops_per_token(config, length):.3g}",
        "memory a GPU, estimated": f"{sum(memory.values()) / 2**30:.2f} GiB in {'bfloat16' if half else 'float32'}: " + ", ".join(f"{what} {size / 2**30:.2f}" for what, size in memory.items()),
    }  # fmt: skip
    if config.experts:
        rows |= _of_experts(config, settings.steps * tokens)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print()
    console.print(table, highlight=False)


def _of_experts(config: ModelConfig, tokens: int) -> dict[str, str]:
    """Lines of --dry-run on the expert layers."""
    experts = config.experts
    assert experts is not None
    some = "layers " if len(experts.layers) > 1 else "layer "
    where = "every layer" if len(experts.layers) == config.layers else some + ", ".join(map(str, experts.layers))
    size, law, beyond = (
        config.mlp_size // experts.granularity,
        scaling_law_flops_per_token(config),
        beyond_mixtral(config),
    )
    computed = (
        "all computed in training" if experts.routing == "threshold" else f"{experts.computed:g} computed for a token"
    )
    told = ", ".join(f"{name} {value}" for name, value in asdict(experts).items() if name in OWN[experts.routing])
    return {
        "experts": f"{experts.routing} in {where}: E = G R = {experts.granularity} x {experts.expansion} experts of size {size} ({experts.activation}), {computed}",
        "told": told.replace("capacity None", "dropless"),
        "export": f"none, beyond Mixtral: {', '.join(beyond)}" if beyond else "as MixtralForCausalLM",
        "FLOPs by the scaling law": f"{law:.4g} a token, {law * tokens:.3g} in all: (12 D^2 6 + D E 14) a block, d_ff taken as 4 D, attention and vocabulary left out",
    }  # fmt: skip
