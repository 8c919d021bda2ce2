"""Training steps: tokens a second, MFU and peak memory, beside transformers' LlamaForCausalLM with SDPA.

    python bench/train.py [--preset 270m] [--lengths 2048 8192 32768] [--rounds 3] [--only 32K] [--json out.json]
    python bench/train.py --check

On CUDA: bfloat16 over float32 weights, 32,768 tokens a step. On CPU: float32, a small preset, 2,048 tokens a step. A step is
forward, backward, clipping and fused AdamW, on random rows. Both sides have the same weights, rows and optimizer; their first
loss and gradient must agree, or the bench stops. At the longest length also YaRN and FoT (which transformers cannot train).

* splice: as `splice train` runs it, blocks compiled on CUDA; "recompute" keeps no activations within a block.
* transformers: as its Trainer runs it, under autocast (which leaves what runs along the layers in float32), loss through
  `labels`, no gradient checkpointing. "compiled" is torch.compile of the whole model, for which its attention is told that all
  is causal: when it is traced it would otherwise write out a mask of length^2 and lose the flash kernel.

A case is a process of its own; cases of one length take turns, --rounds times --steps steps after some that are not counted.
A round's figure is its median step; shown are the median round and the least and most. FoT stands beside full attention. Peak
memory is what torch had allocated at most; on CPU the growth of the resident set once the model is there. A case that runs out of
memory beside the idle others is tried again alone. Needs torch, transformers and rich; the package need not be installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from measure import machine
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

ROOT = Path(__file__).resolve().parent.parent
if find_spec("splice") is None:
    sys.path.append(str(ROOT))
if find_spec("splice.train") is None:
    import splice

    splice.__path__.append(str(ROOT))  # where train/ is

from splice.train.attention import look
from splice.train.flops import CONVENTION, flops_per_token, peak_flops
from splice.train.fot import FoT
from splice.train.hf_config import config_to_hf
from splice.train.loss import IGNORED, fuse
from splice.train.model import PRESETS, Llama, ModelConfig, initial
from splice.train.rope import Rope, extend

CHECK = ModelConfig(512, 64, 2, 4, 2, 16, 176, 128, Rope(original=128), tied=True)
MEMORY_LAYERS = {"check": (1,), "tiny": (2,), "small": (3,), "270m": (6, 9), "3b": (6, 12, 18), "7b": (8, 16, 24),
                 "13b": (12, 24, 36)}  # fmt: skip
LOCAL_CONTEXT = {"check": 128, "tiny": 256, "small": 256}  # 2048 for the paper's
AGREE = {  # relative
    "cpu": {"first_loss": 1e-5, "first_gradient_norm": 1e-4},
    "cuda": {"first_loss": 1e-3, "first_gradient_norm": 2e-2},
}
WARMUP = 3
COMPUTED = "the same with the causal half of attention that is computed"
MEASURED, OUT_OF_MEMORY = "measured", "out of memory"  # outcomes; others say what broke


@dataclass(frozen=True)
class Setup:
    """What all cases share. tokens: of a step. peak_tflops: of the device, None where it is to be looked up."""

    preset: str
    device: str
    tokens: int
    rounds: int
    steps: int
    peak_tflops: float | None = None
    lr: float = 3e-4


@dataclass(frozen=True)
class Case:
    """length: tokens of a row. method: naive, yarn or fot. variant: "", recompute or compiled."""

    length: int
    method: str
    who: str
    variant: str = ""

    @property
    def name(self) -> str:
        size = f"{self.length // 1024}K" if self.length % 1024 == 0 else str(self.length)
        return f"{size} {self.method}, {self.who}" + (f", {self.variant}" if self.variant else "")

    def config(self, preset: str) -> ModelConfig:
        base, local = sizes(preset), local_context(preset)
        rope = extend(base.rope, "yarn" if self.method == "yarn" else "naive", self.length)
        fot = FoT(MEMORY_LAYERS[preset], local, self.length // local - 1) if self.method == "fot" else None
        return replace(base, length=self.length, rope=rope, fot=fot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--preset", choices=PRESETS, help="default: 270m on CUDA, small on CPU")
    parser.add_argument("--lengths", type=int, nargs="+", help="default: 2048 8192 32768 on CUDA, 512 2048 on CPU")
    parser.add_argument(
        "--tokens", type=int, help="of a step; default: 32768 on CUDA, 2048 on CPU, or the longest length"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="of a round")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help='cases whose name has one of these: 2K "32K naive"')
    parser.add_argument("--peak-tflops", type=float, help="bfloat16 of the GPU, for MFU, where it is not known")
    parser.add_argument(
        "--check", action="store_true", help="the smallest sizes, one round: does it run, is it one work"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cuda = device == "cuda"
    preset = arguments.preset or ("270m" if cuda else "small")
    lengths = sorted(arguments.lengths or ([2048, 8192, 32768] if cuda else [512, 2048]))
    tokens = arguments.tokens or max([32768 if cuda else 2048, *lengths])
    rounds, steps = arguments.rounds, arguments.steps
    if arguments.check:
        preset, lengths, tokens, rounds, steps = "check", [256], 512, 1, 2
    if any(tokens % length for length in lengths):
        parser.error(f"a step of {tokens} tokens is no whole number of rows of {lengths}; give other --tokens")
    listed = list_cases(preset, lengths, cuda)
    only = arguments.only or (["naive", "fot"] if arguments.check else [""])
    cases = [case for case in listed if any(f" {text}" in f" {case.name}" for text in only)]
    if not cases:
        parser.error(f"--only {arguments.only}: no such case; there are {'; '.join(case.name for case in listed)}")
    setup = Setup(preset, device, tokens, rounds, steps, arguments.peak_tflops)
    raise SystemExit(bench(setup, cases, arguments.json))


def list_cases(preset: str, lengths: list[int], cuda: bool) -> list[Case]:
    """Those that take turns are neighbours. FoT where a row is several local contexts, YaRN where it is longer than before."""
    peers = [("splice", ""), ("transformers", ""), *([("transformers", "compiled")] if cuda else [])]
    cases = [Case(length, "naive", *peer) for length in lengths for peer in peers]
    last = lengths[-1]
    if cuda:
        cases.append(Case(last, "naive", "splice", "recompute"))
    if last > local_context(preset) and last % local_context(preset) == 0:
        cases.append(Case(last, "fot", "splice"))
    if last > sizes(preset).length:
        cases += [Case(last, "yarn", *peer) for peer in peers]
    return cases


def sizes(preset: str) -> ModelConfig:
    return (PRESETS | {"check": CHECK})[preset]


def local_context(preset: str) -> int:
    return LOCAL_CONTEXT.get(preset, 2048)


def bench(setup: Setup, cases: list[Case], output: Path | None) -> int:
    """Measure, write, show. The exit code: 1 where a case broke other than for want of memory."""
    found: dict[Case, dict[str, Any]] = {}
    report: dict[str, Any] = {
        "machine": machine("torch", "triton", "transformers") | {"device": setup.device, "cuda": torch.version.cuda or "none"},
        "setup": asdict(setup) | {"convention": CONVENTION, "computed": COMPUTED},
        "model": asdict(sizes(setup.preset)) | {"parameters": sizes(setup.preset).parameters},
    }  # fmt: skip
    for _, group in groupby(cases, key=lambda case: (case.length, setup.device == "cuda" and case.method == "yarn")):
        together = list(group)
        found |= measure(setup, together)
        if setup.device == "cuda" and len(together) > 1:
            for case in [case for case in together if found[case]["outcome"] == OUT_OF_MEMORY]:
                found |= {case: values | {"alone": True} for case, values in measure(setup, [case]).items()}
        check_same_work(setup, found)
        for values in found.values():
            report["machine"]["device"] = values.get("device", report["machine"]["device"])
        report |= {"cases": summarise(setup, found), "targets": targets(setup, found)}
        if output:  # after every group: hours on a GPU are not lost to what comes last
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(report, indent=1) + "\n")
    show(report)
    return int(any(values["outcome"] not in (MEASURED, OUT_OF_MEMORY) for values in found.values()))


# ---------------------------------------------------------------------------------------------- processes that take turns


def measure(setup: Setup, cases: list[Case]) -> dict[Case, dict[str, Any]]:
    """Raw figures of each case: its outcome, and where that is MEASURED the seconds of its steps, a list a round."""
    found: dict[Case, dict[str, Any]] = {case: {"outcome": MEASURED, "step_seconds": []} for case in cases}
    with ExitStack() as stack:
        workers = {case: stack.enter_context(worker(setup, case)) for case in cases}

        def turn(case: Case, steps: int) -> list[float]:
            """Seconds of its steps; none where it broke, and then it has no more turns."""
            heard = ask(workers[case], steps)
            seconds = heard.pop("seconds", [])
            found[case] |= heard
            if found[case]["outcome"] != MEASURED:
                say(f"{case.name}: {found[case]['outcome']}")
                del workers[case]
            return seconds

        for case in cases:
            turn(case, 0)  # they load side by side
        for case in list(workers):
            if seconds := turn(case, WARMUP):
                found[case]["warmup_seconds"] = sum(seconds)
                say(f"{case.name}: first loss {found[case]['first_loss']:.5f}, warm after {sum(seconds):.1f} s")
        check_same_work(setup, found)
        for number in range(setup.rounds):
            for case in list(workers):
                if seconds := turn(case, 1 + setup.steps)[1:]:  # the first after a rest is not counted
                    found[case]["step_seconds"].append(seconds)
                    say(f"{case.name}: round {number + 1}, {setup.tokens / statistics.median(seconds):,.0f} tokens/s")
    return found


@contextmanager
def worker(setup: Setup, case: Case) -> Iterator[Connection]:
    """A process of its own for a case; it ends with the context."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=work, args=(its, setup, case))
    process.start()
    its.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def ask(pipe: Connection, steps: int) -> dict[str, Any]:
    """What a worker has to say after so many steps; with 0 what it says by itself, when it is loaded."""
    try:
        if steps:
            pipe.send(steps)
        return pipe.recv()
    except (EOFError, OSError):
        return {"outcome": "killed (out of memory?)"}


def work(pipe: Connection, setup: Setup, case: Case) -> None:
    """A worker's whole life: it loads, and does as many steps as it is told, until nobody tells it."""
    try:
        trainer = Trainer(setup, case)
        pipe.send(trainer.facts)
        while True:
            pipe.send(trainer.steps(pipe.recv()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        said = str(error) or "no message"
        # torch's own class on CUDA, where it may be wrapped by the compiler's; a bare RuntimeError on CPU
        full = isinstance(error, MemoryError) or "out of memory" in said or "can't allocate memory" in said
        broke = f"failed: {type(error).__name__}: {said.splitlines()[0]}"
        pipe.send({"outcome": OUT_OF_MEMORY if full else broke, "error": traceback.format_exc()})


class Trainer:
    """One case's model, optimizer and place in the data."""

    def __init__(self, setup: Setup, case: Case) -> None:
        self.device = torch.device(setup.device)
        self.config = config = case.config(setup.preset)
        self.shape = setup.tokens // case.length, case.length
        self.done = 0
        make = splice_model if case.who == "splice" else transformers_model
        self.model, self.loss = make(config, self.shape[0], self.device, case.variant)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=setup.lr, betas=(0.9, 0.95), fused=True)
        self.loaded_bytes = resident_bytes()
        self.facts = {
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "sdpa": sdpa_backend(config, self.device),
            "peak_flops": peak_flops(self.device, setup.peak_tflops),
            "free_bytes": torch.cuda.mem_get_info()[0] if self.device.type == "cuda" else None,
            "weights_bytes": sum(p.nbytes for p in self.model.parameters()),
        }

    def steps(self, count: int) -> dict[str, Any]:
        """Seconds and loss of each, and what memory is known by then."""
        cuda = self.device.type == "cuda"
        gc.collect()
        if cuda and self.done:  # what warming up took is not counted
            torch.cuda.reset_peak_memory_stats()
        seconds, losses, norms = [], [], []
        first = not self.done
        for _ in range(count):
            ids = self.rows()
            self.wait()
            started = time.perf_counter()
            loss = self.loss(ids)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.wait()
            seconds.append(time.perf_counter() - started)
            losses.append(float(loss.detach()))
            norms.append(float(norm))
        told: dict[str, Any] = {"seconds": seconds, "last_loss": losses[-1]}
        if first:
            told |= {"first_loss": losses[0], "first_gradient_norm": norms[0]}
        if cuda:
            told |= {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
            }
            torch.cuda.empty_cache()  # for those whose turn is next
        else:
            told["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.loaded_bytes
        return told

    def rows(self) -> Tensor:
        """Random tokens, int64 [rows, length]; they follow from the number of the step."""
        draw = torch.Generator().manual_seed(self.done)
        self.done += 1
        return torch.randint(self.config.vocab_size, self.shape, generator=draw).to(self.device)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


Made = tuple[nn.Module, Callable[[Tensor], Tensor]]  # a model, and its mean loss on rows


def splice_model(config: ModelConfig, rows: int, device: torch.device, variant: str) -> Made:
    """As train/loop.py makes and calls it."""
    cuda = device.type == "cuda"
    model = Llama(config, torch.bfloat16 if cuda else torch.float32, recompute=variant == "recompute")
    fill(model, config)
    model.to(device).train()
    if cuda:
        for block in model.model.layers:
            block.compile()
        fuse()
    sight = look(rows, config.length, config.fot, None, device)

    def loss(ids: Tensor) -> Tensor:
        targets = nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORED)
        return model(ids, targets, sight) / (rows * (config.length - 1))

    return model, loss


def transformers_model(config: ModelConfig, rows: int, device: torch.device, variant: str) -> Made:
    """As its Trainer calls it: no key-value cache."""
    from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # Its name has no entry among the makers of masks, so none is made, and SDPA is called with is_causal.
    AttentionInterface.register("sdpa_causal", sdpa_attention_forward)
    attention = "sdpa_causal" if variant == "compiled" else "sdpa"
    model = AutoModelForCausalLM.from_config(LlamaConfig.from_dict(config_to_hf(config)), attn_implementation=attention)
    fill(model, config)
    model.to(device).train()
    if variant == "compiled":
        model.compile()

    def loss(ids: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return model(input_ids=ids, labels=ids, use_cache=False).loss

    return model, loss


@torch.no_grad()
def fill(model: nn.Module, config: ModelConfig) -> None:
    """Weights by name, the same for both sides; they have the same names."""
    parameters = dict(model.named_parameters())
    count = sum(p.numel() for p in parameters.values())
    assert count == config.parameters, f"{count} parameters, not the {config.parameters} of the configuration"
    for name, parameter in parameters.items():
        assert parameter.dtype == torch.float32, f"{name} is {parameter.dtype}"
        parameter.copy_(initial(name, parameter.shape, config, seed=0))


def sdpa_backend(config: ModelConfig, device: torch.device) -> str:
    """Which kernel SDPA takes for causal attention here; a library of the system's that shadows torch's can change it."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    q = torch.empty(1, config.heads, config.length, config.head_size, dtype=dtype, device=device, requires_grad=True)
    return SDPBackend(torch._fused_sdp_choice(q, q, q, is_causal=True)).name


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ------------------------------------------------------------------------------------------------------ what comes of it


def check_same_work(setup: Setup, found: dict[Case, dict[str, Any]]) -> None:
    """Raises SystemExit where a peer's first loss or gradient is not splice's on the same weights and rows."""
    for case, values in found.items():
        ours = found.get(Case(case.length, case.method, "splice"), {})
        for what, tolerance in AGREE[setup.device].items():
            wanted, got = ours.get(what), values.get(what)
            if wanted is not None and got is not None and not abs(got - wanted) <= tolerance * abs(wanted):
                raise SystemExit(
                    f"{case.name}: {what.replace('_', ' ')} {got:.6f}, splice's {wanted:.6f}; they do not do the same work, "
                    "and their speed is not compared"
                )


def summarise(setup: Setup, found: dict[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """All that is known of each case, with its figures: tokens a second, MFU, and both beside transformers."""
    listed = []
    for case, values in found.items():
        config = case.config(setup.preset)
        flops = [flops_per_token(config, case.length, causal) for causal in (False, True)]
        of_round = speeds(setup, values)
        peak = values.get("peak_flops")
        speed = statistics.median(of_round) if of_round else None
        listed.append(
            {
                "case": case.name,
                **asdict(case),
                "rows": setup.tokens // case.length,
                **values,
                "tokens_per_second": speed,
                "tokens_per_second_of_rounds": of_round,
                "flops_per_token": flops[0],
                "computed_flops_per_token": flops[1],
                "mfu": speed * flops[0] / peak if speed and peak else None,
                "computed_mfu": speed * flops[1] / peak if speed and peak else None,
                "speed_to_transformers": ratio(setup, found, case, peer(case)),
                "speed_to_compiled": ratio(setup, found, case, peer(case, "compiled")),
                "memory_to_transformers": memory_ratio(found, case, peer(case)),
            }
        )
    return listed


def peer(case: Case, variant: str = "") -> Case:
    """Who does the same work in transformers; of FoT, whose work it has not, full attention."""
    return Case(case.length, "naive" if case.method == "fot" else case.method, "transformers", variant)


def speeds(setup: Setup, values: dict[str, Any]) -> list[float]:
    """Tokens a second of each round."""
    rounds = values["step_seconds"] if values["outcome"] == MEASURED else []
    return [setup.tokens / statistics.median(seconds) for seconds in rounds]


def ratio(setup: Setup, found: dict[Case, dict[str, Any]], case: Case, other: Case) -> float | None:
    """The median over rounds of one's speed to the other's in the same round."""
    both = [speeds(setup, found[one]) if one in found else [] for one in (case, other)]
    return statistics.median(a / b for a, b in zip(*both, strict=False)) if all(both) else None


def memory_ratio(found: dict[Case, dict[str, Any]], case: Case, other: Case) -> float | None:
    a, b = (found.get(one, {}) for one in (case, other))
    measured = a.get("outcome") == b.get("outcome") == MEASURED
    return a["peak_bytes"] / b["peak_bytes"] if measured else None


def targets(setup: Setup, found: dict[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each with its figure, None where it was not measured. On a GPU they are of 270M at 32K, on one H100 or H200."""

    def target(what: str, figure: float | None, bound: float, at_most: bool = False) -> dict[str, Any]:
        reached = None if figure is None else (figure <= bound if at_most else figure >= bound)
        return {"target": what, "figure": figure, "bound": bound, "at_most": at_most, "reached": reached}

    listed = []
    for case in found:
        if (case.who, case.variant) != ("splice", "") or setup.preset == "check":
            continue
        if setup.device == "cpu" and case.method != "fot":
            listed.append(target(f"{case.name}: speed to transformers", ratio(setup, found, case, peer(case)), 1.0))
        if setup.device == "cpu" or (setup.preset, case.length) != ("270m", 32768):
            continue
        if case.method == "fot":
            full = Case(case.length, "naive", "splice")
            listed.append(target(f"{case.name}: speed to full attention", ratio(setup, found, case, full), 2.0))
            continue
        known = next(known for known in summarise(setup, found) if known["case"] == case.name)
        listed += [
            target(f"{case.name}: MFU", known["mfu"], 0.45),
            target(f"{case.name}: speed to transformers", known["speed_to_transformers"], 1.3),
            target(f"{case.name}: peak memory to transformers", known["memory_to_transformers"], 2 / 3, at_most=True),
        ]
    return listed


def show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console, setup, about = Console(width=132), report["setup"], report["machine"]
    cuda = setup["device"] == "cuda"
    where = about["device"] if cuda else f"{about['cpu']}, {report['cases'][0].get('threads', '?')} threads"
    precision = "bfloat16 over float32" if cuda else "float32"
    table = Table(
        Column("case", no_wrap=True),
        title=f"{setup['preset']}, {report['model']['parameters'] / 1e6:,.1f}M parameters, {setup['tokens']:,} tokens a step, "
        f"{precision}, {where}, torch {about['torch']}, transformers {about['transformers']}",
    )
    memory = "peak GiB" if cuda else "peak GiB\nbeyond weights"
    for column in ("tokens/s", "rounds", *(("MFU", "computed") if cuda else ()), memory, "speed to\ntransformers",
                   *(("speed to\ncompiled",) if cuda else ()), "memory to\ntransformers"):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=column == "tokens/s")
    for case in report["cases"]:
        if case["outcome"] != MEASURED:
            table.add_row(case["case"], case["outcome"].split(":")[0])
            continue
        rounds = case["tokens_per_second_of_rounds"]
        table.add_row(
            case["case"],
            f"{case['tokens_per_second']:,.0f}",
            f"{min(rounds):,.0f}-{max(rounds):,.0f}",
            *((share(case["mfu"]), share(case["computed_mfu"])) if cuda else ()),
            f"{case['peak_bytes'] / 2**30:.2f}",
            times(case["speed_to_transformers"]),
            *((times(case["speed_to_compiled"]),) if cuda else ()),
            times(case["memory_to_transformers"]),
        )
    console.print(table)
    if cuda:
        console.print(f"MFU: {CONVENTION}, to the GPU's dense bfloat16 peak; computed: {COMPUTED}", soft_wrap=True)
    for target in report["targets"]:
        got = "not measured" if target["figure"] is None else f"{target['figure']:.3f}"
        verdict = {None: "", True: ": reached", False: ": not reached"}[target["reached"]]
        bound = f"{'at most' if target['at_most'] else 'at least'} {target['bound']:.3f}"
        console.print(f"{target['target']}, {bound}: {got}{verdict}", soft_wrap=True, highlight=False)


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
