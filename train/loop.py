"""The training loop, from the first weights to the last checkpoint, read from top to bottom.

State is (seed, step): the data's order is a permutation by seed, so a run that was killed goes on from its last checkpoint with
the losses it would have had, on any number of GPUs (with one number of them to the bit, on CPU).
"""

from __future__ import annotations

import hashlib
import math
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace

import numpy as np
import torch
from rich.console import Console

from splice.errors import Interrupted, TrainingFailed
from splice.files import write_json

from .attention import Sight, look
from .checkpoint import checkpoints, load, save, sweep_run
from .data import MicroBatch, Step, feed
from .evaluate import evaluate
from .experts.starts import as_first_values, without_first_values
from .experts.tally import Tally
from .flops import CONVENTION, flops_per_token, peak_flops, scaling_law_flops_per_token
from .hf_read import read_config
from .log import RunLog
from .loss import fuse
from .model import Llama, initial
from .parallel import Everywhere, World, by_kind, clip, fill, spread
from .plan import RUN, Plan, differences
from .restore import check_whole, weights_of
from .schedule import learning_rate


class LossIsNoNumber(TrainingFailed, Everywhere):
    """The loss or the gradient of a step is not finite; nothing was updated."""


class Stopped(Interrupted, Everywhere):
    """SIGINT or SIGTERM reached a rank; the step it came at is kept."""


def train(plan: Plan, world: World, console: Console) -> None:
    """Train to plan.settings.steps, or go on from the last checkpoint with --resume.

    Raises LossIsNoNumber, and Stopped after SIGINT or SIGTERM, with a checkpoint of the step it was at.
    """
    settings, output = plan.settings, plan.output
    torch.manual_seed(settings.seed)
    jittered = plan.config.experts is not None and plan.config.experts.jitter > 0
    model = build(plan, world)
    optimizer = make_optimizer(model, plan)
    first, tokens = 0, 0
    notes: list[str] = []
    if plan.last is not None:
        state = load(plan.last, model, optimizer, world)
        first, tokens = state["step"], state["tokens"]
        notes = [f"going on from {plan.last}", *differences(plan.last, plan.identity)]
        if first >= settings.steps:
            notes.append(f"nothing to do: step {first} of {settings.steps} is done")
    else:
        first_weights(model, plan)
        if settings.resume:
            notes = [f"{output}: no checkpoint yet, so this is step 1"]
    if world.first:
        _open_run(plan, world)
    per_step = settings.batch.size * plan.config.length
    flops = flops_per_token(plan.config, plan.config.length)
    peak = peak_flops(world.device, settings.log.peak_tflops)
    sight, alone = sights(plan, world), sights(plan, world, negatives=False)
    tally = Tally()

    def checkpoint(step: int) -> None:
        state = {"step": step, "tokens": tokens, "identity": plan.identity, "tokenizer": plan.tokenizer}
        path = save(output, state, model, optimizer, world, settings.checkpoint.keep, plan.tokenizer_files)
        log.say(f"checkpoint: {path}")

    def validate(step: int) -> None:
        assert plan.validation is not None
        micro, limit = settings.batch.micro, settings.evaluation.rows
        log.validation(step, evaluate(model, plan.validation, limit, micro, plan.policy, world, alone))

    steps = feed(
        plan.rows, settings.seed, first, settings.steps, settings.batch.size, settings.batch.micro, plan.policy, world
    )
    with _log(plan, first, console, world) as log, _stoppable() as asked_to_stop, _tuned(plan):
        for note in notes:
            log.say(note)
        model.train()
        started = time.perf_counter()
        for step, data in enumerate(steps, start=first):
            # gradient: the mean over all predicted tokens of the step, however they are spread
            predicted, stop = world.sum((data.predicted, asked_to_stop()))
            losses = []
            for micro in data.micro:
                if jittered:  # by the rows, so that neither the number of data ranks nor a resumption changes it
                    torch.manual_seed(_mixed(settings.seed, step, int(micro.rows[0]), world.context_rank))
                micro = micro.to(world.device)
                loss = model(micro.ids, micro.targets, sight(micro))
                (loss * (world.size / max(1.0, predicted))).backward()  # FSDP takes the mean over ranks
                losses.append(loss.detach())
                tally.add(model.records)
            norm = clip(model.parameters(), settings.optimizer.clip)
            mean = world.sum([float(torch.stack(losses).double().sum())])[0] / max(1.0, predicted)
            if not math.isfinite(mean) or not math.isfinite(norm):
                raise LossIsNoNumber(
                    _not_a_number(step, data, losses, plan, world, "gradient" if math.isfinite(mean) else "loss")
                )
            rate = learning_rate(step, settings.steps, settings.optimizer)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            # what is left is to tell of it
            seconds = time.perf_counter() - started
            done, tokens = step + 1, tokens + per_step
            speed = per_step / seconds
            routing, layers = tally.close(world, per_step)
            log.step(
                {
                    "step": done,
                    "tokens": tokens,
                    "epoch": data.epoch,
                    "loss": mean,
                    "lr": rate,
                    "grad_norm": norm,
                    "tokens_per_second": speed,
                    "mfu": None if peak is None else flops * speed / (peak * world.size),
                    "memory_gib": memory_gib(world.device),
                    "seconds": seconds,
                    **routing,
                }
            )
            ended = done == settings.steps
            if layers and (ended or done % settings.log.experts == 0):
                log.experts(done, layers)
            every = settings.evaluation.every
            if plan.validation is not None and (ended or (every and done % every == 0)):
                validate(done)
            if done % settings.checkpoint.every == 0 or ended or stop:
                checkpoint(done)
            if stop and not ended:
                raise Stopped(
                    f"stopped after step {done}, which is kept; the same command with --resume goes on from there"
                )
            started = time.perf_counter()


def build(plan: Plan, world: World) -> Llama:
    """The model without its weights' values, sharded over the world; blocks compiled where that is asked for."""
    settings = plan.settings
    cuda = world.device.type == "cuda"
    half = settings.dtype == "bfloat16" or (settings.dtype == "auto" and cuda)
    with torch.device("meta"):
        model = Llama(plan.config, torch.bfloat16 if half else torch.float32, settings.recompute)
    _choose_kernels(model, plan)
    if settings.compile or (settings.compile is None and cuda):
        for block in model.model.layers:
            block.compile()
        fuse()
    if plan.config.tied:
        # FSDP loses the tie of weights that have no memory yet; a tied model is small enough to be whole for a moment
        model.to_empty(device=world.device)
        model.lm_head.weight = model.model.embed_tokens.weight
        spread(model, world, settings.expert_parallel)
    else:
        spread(model, world, settings.expert_parallel)
        model.to_empty(device=world.device)
    return model


def _choose_kernels(model: Llama, plan: Plan) -> None:
    chosen = plan.settings.kernels
    if plan.config.experts is None or chosen == "auto":
        return
    for layer in plan.config.experts.layers:
        model.model.layers[layer].mlp.experts.backend = chosen


def first_weights(model: Llama, plan: Plan) -> None:
    """Random weights by the seed, or those of --init: a Hugging Face directory or a checkpoint."""
    parameters = dict(model.named_parameters())
    if plan.start is None:
        for name, parameter in parameters.items():
            fill(parameter, initial(name, parameter.shape, plan.config, plan.settings.seed))
        return
    start = read_config(plan.start)
    for name in without_first_values(start, plan.config):
        parameter = parameters.pop(name)
        fill(parameter, initial(name, parameter.shape, plan.config, plan.settings.seed))
    for name, value in as_first_values(weights_of(plan.start, start), start, plan.config):
        if name in parameters:
            fill(parameters.pop(name), value)
    check_whole(plan.start, list(parameters))


def make_optimizer(model: Llama, plan: Plan) -> torch.optim.AdamW:
    """AdamW, its moments in float32, sharded as the weights are; norms do not decay."""
    asked = plan.settings.optimizer
    groups = [
        {"params": some, "weight_decay": asked.weight_decay if dimensions > 1 else 0.0}
        for (dimensions, _), some in by_kind(model.parameters()).items()
    ]
    return torch.optim.AdamW(groups, lr=asked.lr, betas=(asked.beta1, asked.beta2), fused=True)


def sights(plan: Plan, world: World, negatives: bool = True) -> Callable[[MicroBatch], Sight]:
    """What the tokens of a micro-batch see; found once where that does not depend on the data.

    negatives=False: FoT's memory layers see no other example, as at inference, so that a validation loss is an example's own.
    """
    length, fot = plan.config.length, plan.config.fot
    known: dict[int, Sight] = {}
    if fot and not negatives:
        fot = replace(fot, cross_batch_range=min(fot.cross_batch_range, length // fot.local_context - 1))

    def sight(micro: MicroBatch) -> Sight:
        rows = len(micro.ids)
        if micro.documents is not None:
            return look(rows, length, fot, micro.documents, world.device)
        if rows not in known:
            known[rows] = look(rows, length, fot, None, world.device)
        return known[rows]

    return sight


def memory_gib(device: torch.device) -> float:
    """The most this process has held: of GPU memory, or on CPU of memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _open_run(plan: Plan, world: World) -> None:
    sweep_run(plan.output)
    config = plan.config
    about = {
        "settings": plan.settings.model_dump(mode="json"),
        "experts": asdict(config.experts) if config.experts else None,
        "parameters": config.parameters,
        "active_parameters": config.active_parameters,
        "matmul_parameters": config.matmul_parameters,
        "flops_per_token": flops_per_token(config, config.length),
        "flops_convention": CONVENTION,
        "flops_per_token_by_the_scaling_law": scaling_law_flops_per_token(config) if config.experts else None,
        "ranks": world.size,
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    write_json(plan.output / RUN, about)


def _log(plan: Plan, first: int, console: Console, world: World) -> RunLog:
    if not world.first:
        return RunLog.silent()
    asked = plan.settings.log
    about = plan.settings.model_dump(mode="json")
    moe = plan.config.experts is not None
    return RunLog(plan.output, plan.settings.steps, first, console, asked.tensorboard, asked.wandb, about, experts=moe)


def _mixed(*numbers: int) -> int:
    """A seed that depends on all of them."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=7).digest())


def _tuned(plan: Plan) -> AbstractContextManager[None]:
    """Within, the kernels' block sizes are tried out where that is asked for; without a GPU there are none."""
    if not plan.settings.tune_kernels or not torch.cuda.is_available():
        return nullcontext()
    from .kernels.gpu.blocks import tuning

    return tuning()


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM end the run after the step it is at, with a checkpoint; a second one ends it at once."""
    asked = 0.0  # when
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals are the main thread's
        return

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked and time.monotonic() - asked > 1:  # a terminal's reaches this process twice: by itself and passed on
            raise KeyboardInterrupt
        if not asked:
            asked = time.monotonic()
            print("\nsplice: stopping after this step (again: at once)", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _not_a_number(step: int, data: Step, losses: list[torch.Tensor], plan: Plan, world: World, what: str) -> str:
    """Which rows, of all ranks', gave a loss that is no number; all of the step's where only the gradient is none."""
    rows = np.stack([micro.rows for micro in data.micro])  # [micro-batches, m]
    bad = ~torch.isfinite(torch.stack(losses)).cpu().numpy()
    marked = np.where(bad[:, None] if what == "loss" else True, rows, -1).ravel()
    everywhere = world.gather(torch.from_numpy(marked).to(world.device)).cpu().numpy()
    examples = sorted({plan.rows.example_of(int(row)) for row in everywhere if row >= 0})
    shown = ", ".join(map(str, examples[:8])) + (f" and {len(examples) - 8} more" if len(examples) > 8 else "")
    found = checkpoints(plan.output)
    kept = f"the last checkpoint, {found[-1]}, is good" if found else "there is no checkpoint yet"
    return (
        f"step {step + 1}: the {what} is not a number, on example{'s' if len(examples) > 1 else ''} {shown} of {plan.rows.dataset.path} "
        f"(splice inspect {plan.rows.dataset.path} --example {examples[0] if examples else 0}); nothing was updated, {kept}. "
        "--resume with a lower --optimizer.lr or with --dtype float32 may get over it"
    )
