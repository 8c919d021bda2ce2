"""One layer of experts, forward and backward: time, TFLOP/s, share of the roofline and memory over granularity, beside its peers.

    python bench/experts.py [--tokens 8192 32768] [--sizes 1024 4096] [--granularities 1 2 4 8 16] [--expansions 8 16]
                            [--rounds 20] [--tune] [--whole] [--kernels] [--json out.json] [--figure out.png]

On CUDA in bfloat16, on CPU in float32 and small (for the shape of the curves; the Triton kernels need a GPU). d_ff = 4 D, an
expert is d_ff / G wide, there are G R of them and a token goes to G: all layers compute as much. Each side is given the same
tokens, the same experts of them and the same weights, and does all that lies between: sorting, gathering, products, activation,
weighting, and the gradients of tokens, weights and both matrices. Outputs and gradients must agree, or the bench stops.

    splice          the kernels of train/kernels: Triton on CUDA, plain torch on CPU
    grouped_mm      torch's F.grouped_mm between a gather and a weighted sum (train/kernels/grouped.py)
    transformers    MixtralExperts with experts_implementation="grouped_mm"
    liger           liger-kernel's LigerFusedMoEFunction (Triton, CUDA alone)
    scattermoe      ScatterMoE's GLUMLP (Triton, CUDA alone)

MegaBlocks 0.10 needs a torch below 2.7.1 and a CUDA compiler, so it does not install beside the others. A side that is not
installed, or runs out of memory, is left out and said to be. Kept is what lies in memory between forward and backward beside
inputs and weights; peak is what torch allocated at most in both, above them (CUDA alone). The roofline is the larger of
FLOPs over the device's peak and the bytes that must move (weights read twice and their gradients written, tokens and outputs
with gradients once, H written and read) over its bandwidth.

--whole: steps of the 270M model, dense and as a mixture of experts (G = 8, R = 16), tokens a second (on CPU of the tiny one).
--kernels: registers, spills, shared memory and matrix instructions of each Triton kernel, compiled for sm_80 and sm_90 without
a GPU. --tune: measure block sizes first and keep the best (see train/kernels/gpu/blocks.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measure import machine
from rich.console import Console
from rich.table import Table
from torch import Tensor

from splice.train.experts.config import Experts
from splice.train.flops import flops_per_token, peak_flops
from splice.train.kernels import experts, schedule
from splice.train.model import PRESETS, Llama, initial

BANDWIDTHS = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.0e12}  # bytes a second, as their maker states them
CONSOLE = Console(width=150)


@dataclass(frozen=True)
class Layer:
    """T tokens of D numbers, each to G of G R experts of 4 D / G."""

    tokens: int
    size: int
    granularity: int
    expansion: int

    @property
    def count(self) -> int:
        return self.granularity * self.expansion

    @property
    def width(self) -> int:
        return 4 * self.size // self.granularity

    @property
    def flops(self) -> float:
        """Of forward and backward: three matrices, each a product forward and two backward."""
        return 18.0 * self.tokens * self.granularity * self.width * self.size

    def least_bytes(self, element: int) -> float:
        weights = 3 * self.count * self.width * self.size
        h = 2 * self.tokens * self.granularity * self.width
        return element * (3.0 * weights + 4.0 * self.tokens * self.size + 2.0 * h)


@dataclass(frozen=True)
class Inputs:
    x: Tensor
    up: Tensor
    down: Tensor
    weights: Tensor  # [T, G]
    chosen: Tensor  # [T, G]
    slope: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [self.x, self.weights, self.up, self.down]


@dataclass(frozen=True)
class Figure:
    """seconds: the median of forward and backward; least, most of them. kept, peak: bytes."""

    side: str
    layer: Layer
    seconds: float
    least: float
    most: float
    tflops: float
    roofline: float | None
    kept: int
    peak: int | None


def make_inputs(layer: Layer, device: torch.device, dtype: torch.dtype) -> Inputs:
    """Of a router that is about balanced, as trained ones are."""
    draw = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=draw, device=device) * scale).to(dtype).requires_grad_()

    logits = torch.randn(layer.tokens, layer.count, generator=draw, device=device)
    weights, chosen = logits.softmax(1).topk(layer.granularity, dim=1)
    weights = (weights / weights.sum(1, keepdim=True)).requires_grad_()
    x = normal(layer.tokens, layer.size)
    up = normal(layer.count, 2 * layer.width, layer.size, scale=layer.size**-0.5)
    down = normal(layer.count, layer.size, layer.width, scale=layer.width**-0.5)
    return Inputs(x, up, down, weights.detach().requires_grad_(), chosen, normal(layer.tokens, layer.size).detach())


# ------------------------------------------------------------------------------------------------------------- sides


def splice(layer: Layer, i: Inputs) -> Callable[[], Tensor]:
    def run() -> Tensor:
        plan = schedule(i.chosen.int(), layer.count, layer.tokens)
        return experts(i.x, i.up, i.down, i.weights.flatten(), plan)

    return run


def grouped_mm(layer: Layer, i: Inputs) -> Callable[[], Tensor]:
    def run() -> Tensor:
        plan = schedule(i.chosen.int(), layer.count, layer.tokens)
        return experts(i.x, i.up, i.down, i.weights.flatten(), plan, backend="grouped")

    return run


def transformers(layer: Layer, i: Inputs) -> Callable[[], Tensor]:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralExperts

    config = MixtralConfig(hidden_size=layer.size, intermediate_size=layer.width, num_local_experts=layer.count)
    config._experts_implementation = "grouped_mm"
    with torch.device("meta"):
        module = MixtralExperts(config)
    module.gate_up_proj, module.down_proj = (torch.nn.Parameter(weight.detach()) for weight in (i.up, i.down))
    del module._parameters["gate_up_proj"], module._parameters["down_proj"]
    module.gate_up_proj, module.down_proj = i.up, i.down  # the very leaves whose gradients are compared
    return lambda: module(i.x, i.chosen, i.weights.to(i.x.dtype))


def liger(layer: Layer, i: Inputs) -> Callable[[], Tensor]:
    from liger_kernel.ops import LigerFusedMoEFunction

    _on_cuda(i)
    return lambda: LigerFusedMoEFunction.apply(i.x, i.up, i.down, i.chosen.int(), i.weights)


def scattermoe(layer: Layer, i: Inputs) -> Callable[[], Tensor]:
    from scattermoe.mlp import GLUMLP

    _on_cuda(i)
    with torch.device("meta"):
        module = GLUMLP(layer.size, layer.width, layer.count, layer.granularity)
    gate, value = i.up.chunk(2, dim=1)
    for experts_, weight in ((module.experts, torch.cat((value, gate), 1)), (module.output_experts, i.down)):
        experts_.weight = torch.nn.Parameter(weight.detach())
    return lambda: module(i.x, i.weights.to(i.x.dtype), i.chosen)


SIDES = {f.__name__: f for f in (splice, grouped_mm, transformers, liger, scattermoe)}


def _on_cuda(inputs: Inputs) -> None:
    if not inputs.x.is_cuda:
        raise ImportError("CUDA alone")


# ---------------------------------------------------------------------------------------------------------- measuring


def measure(layer: Layer, device: torch.device, dtype: torch.dtype, rounds: int) -> Iterator[Figure | str]:
    """A figure a side, or why there is none."""
    inputs = make_inputs(layer, device, dtype)
    wanted, times, kept, peaks = None, {}, {}, {}
    for name, side in SIDES.items():
        try:
            run = side(layer, inputs)
            found = gradients(run, inputs)
            if wanted is None:
                wanted = found
            compare(name, found, wanted, dtype)
            kept[name], peaks[name] = memory(run, inputs)
            times[name] = run
        except ImportError as error:
            yield f"{name}: {error}"
        except torch.OutOfMemoryError:
            yield f"{name}: out of memory"
            torch.cuda.empty_cache()
    seconds: dict[str, list[float]] = {name: [] for name in times}
    for _ in range(rounds):  # in turn, so that all see the same machine
        for name, run in times.items():
            seconds[name].append(timed(run, inputs))
    peak = peak_flops(device, None)
    bandwidth = next(
        (b for known, b in BANDWIDTHS.items() if device.type == "cuda" and known in torch.cuda.get_device_name()), None
    )
    for name, taken in seconds.items():
        median = statistics.median(taken)
        least = None
        if peak and bandwidth:
            least = max(layer.flops / peak, layer.least_bytes(dtype.itemsize) / bandwidth)
        yield Figure(
            name,
            layer,
            median,
            min(taken),
            max(taken),
            layer.flops / median / 1e12,
            least and least / median,
            kept[name],
            peaks[name],
        )


def gradients(run: Callable[[], Tensor], inputs: Inputs) -> list[Tensor | None]:
    """The output and the gradient of each leaf; None where a side has its own copy of the weights."""
    out = run()
    return [out.detach(), *torch.autograd.grad(out, inputs.leaves, inputs.slope, allow_unused=True)]


def compare(name: str, found: list[Tensor | None], wanted: list[Tensor | None], dtype: torch.dtype) -> None:
    tolerance = 1e-4 if dtype is torch.float32 else 4e-2
    for what, a, b in zip(("output", "x", "weights", "up", "down"), found, wanted, strict=True):
        if a is not None and b is not None:
            worst, scale = (a.float() - b.float()).abs().max().item(), b.float().abs().max().item()
            if not worst <= tolerance * scale:
                raise SystemExit(
                    f"{name}: {what} differs by {worst:.2e} where values reach {scale:.2e}; nothing is measured"
                )


def memory(run: Callable[[], Tensor], inputs: Inputs) -> tuple[int, int | None]:
    held = {tensor.untyped_storage().data_ptr() for tensor in (*inputs.leaves, inputs.chosen)}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    cuda = inputs.x.is_cuda
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run()
    kept = sum(found.values())
    torch.autograd.grad(out, inputs.leaves, inputs.slope, allow_unused=True)
    return kept, torch.cuda.max_memory_allocated() - before if cuda else None


def timed(run: Callable[[], Tensor], inputs: Inputs) -> float:
    if not inputs.x.is_cuda:
        started = time.perf_counter()
        torch.autograd.grad(run(), inputs.leaves, inputs.slope, allow_unused=True)
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.autograd.grad(run(), inputs.leaves, inputs.slope, allow_unused=True)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000


# -------------------------------------------------------------------------------------------------------- whole models


def whole(device: torch.device, rounds: int) -> dict[str, Any]:
    """Tokens a second of training steps (forward, backward, AdamW) of a dense model and of a mixture of experts of it."""
    cuda = device.type == "cuda"
    dense = replace(PRESETS["270m" if cuda else "tiny"], length=2048 if cuda else 512)
    layers = tuple(range(dense.layers))
    models = {"dense": dense, "MoE": replace(dense, experts=Experts("token_choice", 8, 16, layers, 8))}
    rows, found = 16 if cuda else 4, {}
    for name, config in models.items():
        with device:
            model = Llama(config, torch.bfloat16 if cuda else torch.float32)
        with torch.no_grad():
            for weight_name, weight in model.named_parameters():
                weight.copy_(initial(weight_name, weight.shape, config, 0))
        if cuda:
            for block in model.model.layers:
                block.compile()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        ids = torch.randint(0, config.vocab_size, (rows, config.length), device=device)
        seconds = []
        for _ in range(rounds + 3):
            started = time.perf_counter()
            (model(ids, ids) / ids.numel()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        speed = ids.numel() / statistics.median(seconds[3:])
        peak = peak_flops(device, None)
        found[name] = {
            "parameters": config.parameters,
            "active_parameters": config.active_parameters,
            "tokens_per_second": speed,
            "mfu": speed * flops_per_token(config, config.length) / peak if peak else None,
        }
        del model, optimizer
        if cuda:
            torch.cuda.empty_cache()
    return found


# ---------------------------------------------------------------------------------------------------------- the kernels


def compiled() -> list[dict[str, Any]]:
    from splice.train.kernels.gpu.compile import Shape, compile_all

    shapes = [Shape(tokens, 1024, 4096 // g, 8 * g, g) for tokens in (8192, 512, 64) for g in (1, 16)]
    rows = []
    for kernel in compile_all(shapes):
        about = asdict(kernel)
        for name in ("ptx", "cubin"):
            del about[name]
        rows.append(about | {"shape": f"T {kernel.shape.tokens:,}, G {kernel.shape.k}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768] if cuda else [1024])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096] if cuda else [256], help="D")
    parser.add_argument("--granularities", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--expansions", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    a = parser.parse_args()
    for size, granularity in ((size, g) for size in a.sizes for g in a.granularities):
        if 4 * size % granularity or 4 * size // granularity % 8:
            parser.error(f"granularity {granularity}: d_ff / G = {4 * size} / {granularity} must be a multiple of 8")
    if min(*a.tokens, a.rounds, *a.expansions) < 1:
        parser.error("tokens, rounds and expansions are 1 or more")
    device = torch.device("cuda" if cuda else "cpu")
    dtype = torch.bfloat16 if cuda else torch.float32
    result: dict[str, Any] = {
        "machine": machine("torch", "triton", "transformers", "liger-kernel", "scattermoe"),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "layers": [],
        "left_out": [],
    }
    with _tuning(a.tune):
        for tokens in a.tokens:
            for size in a.sizes:
                for expansion in a.expansions:
                    figures = []
                    for granularity in a.granularities:
                        for found in measure(Layer(tokens, size, granularity, expansion), device, dtype, a.rounds):
                            if isinstance(found, str):
                                result["left_out"].append(
                                    f"T {tokens}, D {size}, G {granularity}, R {expansion}: {found}"
                                )
                            else:
                                figures.append(found)
                    show(figures, result["device"])
                    result["layers"] += [asdict(figure) for figure in figures]
        if a.whole:
            result["whole"] = whole(device, a.rounds)
            show_whole(result["whole"])
    for line in sorted({line.partition(": ")[2] for line in result["left_out"]}):
        CONSOLE.print(f"left out: {line}")
    if a.kernels:
        result["kernels"] = compiled()
        show_kernels(result["kernels"])
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")
    if a.figure:
        draw(result, a.figure)


def _tuning(on: bool) -> Any:
    if not on:
        return nullcontext()
    from splice.train.kernels.gpu.blocks import tuning

    return tuning()


# ------------------------------------------------------------------------------------------------------------- showing


def show(figures: list[Figure], device: str) -> None:
    layer = figures[0].layer
    table = Table(
        "G", title=f"T {layer.tokens:,}, D {layer.size:,}, R {layer.expansion}, forward and backward, {device}"
    )
    for name in ("side", "ms", "least .. most", "TFLOP/s", "of the roofline", "kept, MiB", "peak, MiB", "splice is"):
        table.add_column(name, justify="left" if name == "side" else "right")
    ours = {figure.layer: figure.seconds for figure in figures if figure.side == "splice"}
    for figure in figures:
        table.add_row(
            str(figure.layer.granularity) if figure.side == "splice" else "",
            figure.side,
            f"{1000 * figure.seconds:.2f}",
            f"{1000 * figure.least:.2f} .. {1000 * figure.most:.2f}",
            f"{figure.tflops:.2f}" if figure.tflops < 10 else f"{figure.tflops:.0f}",
            "" if figure.roofline is None else f"{figure.roofline:.0%}",
            f"{figure.kept / 2**20:,.1f}",
            "" if figure.peak is None else f"{figure.peak / 2**20:,.0f}",
            "" if figure.side == "splice" else f"{figure.seconds / ours[figure.layer]:.2f} times as fast",
            end_section=figure.side != "splice"
            and figure is not figures[-1]
            and figures[figures.index(figure) + 1].side == "splice",
        )
    CONSOLE.print(table)


def show_whole(models: dict[str, Any]) -> None:
    table = Table("model")
    for name in ("parameters", "active", "tokens/s", "MFU", "of the dense model's"):
        table.add_column(name, justify="right")
    for name, model in models.items():
        table.add_row(
            name,
            f"{model['parameters'] / 1e6:,.0f}M",
            f"{model['active_parameters'] / 1e6:,.0f}M",
            f"{model['tokens_per_second']:,.0f}",
            "" if model["mfu"] is None else f"{model['mfu']:.1%}",
            f"{model['tokens_per_second'] / models['dense']['tokens_per_second']:.0%}",
        )
    CONSOLE.print(table)


def show_kernels(rows: list[dict[str, Any]]) -> None:
    """Those that multiply; the others are in the JSON. A kernel that several shapes share stands once."""
    table = Table(
        "kernel",
        title="bfloat16, D 1,024, R 8, whatever is timed; compiled without a GPU. product: down, then dX; outer: d_down, d_up",
    )
    for name in (
        "shape",
        "target",
        "tile",
        "warps",
        "stages",
        "registers",
        "spilled, bytes",
        "shared, KiB",
        "wgmma",
        "mma.sync",
    ):
        table.add_column(name, justify="right")
    for row in (row for row in rows if row["tile"]):
        table.add_row(
            row["kernel"].removesuffix("_kernel"),
            row["shape"],
            row["target"],
            " x ".join(map(str, row["tile"])),
            str(row["warps"]),
            str(row["stages"]),
            str(row["registers"]),
            str(row["spill_bytes"]),
            f"{row['shared_bytes'] / 1024:.0f}",
            str(row["wgmma"]),
            str(row["mma"]),
        )
    CONSOLE.print(table)


def draw(result: dict[str, Any], path: Path) -> None:
    """Time over granularity, a panel for each of the other sizes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    cases = sorted({(f["layer"]["tokens"], f["layer"]["size"], f["layer"]["expansion"]) for f in result["layers"]})
    figure, axes = plt.subplots(1, len(cases), figsize=(0.6 + 3.4 * len(cases), 3.4), dpi=150, squeeze=False)
    colours = dict(zip(SIDES, ("#e45756", "#4c78a8", "#f2a541", "#54a24b", "#9aa5b1"), strict=True))
    for axis, case in zip(axes[0], cases, strict=True):
        for side in SIDES:
            points = [
                (f["layer"]["granularity"], 1000 * f["seconds"])
                for f in result["layers"]
                if f["side"] == side and (f["layer"]["tokens"], f["layer"]["size"], f["layer"]["expansion"]) == case
            ]
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    ms=4,
                    lw=2 if side == "splice" else 1.3,
                    color=colours[side],
                    label=side,
                )
        granularities = sorted({f["layer"]["granularity"] for f in result["layers"]})
        axis.set_xscale("log", base=2)
        axis.set_xticks(granularities, [str(g) for g in granularities])
        axis.minorticks_off()
        axis.set_ylim(0, None)
        axis.set_xlabel("granularity G")
        axis.set_title(f"T {case[0]:,}, D {case[1]:,}, R {case[2]}", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("forward and backward, ms")
    axes[0][-1].legend(frameon=False, fontsize=8)
    name = (
        result["device"]
        if result["device"] != "cpu"
        else f"{result['machine']['cpu']}, {result['machine']['cores']} cores"
    )
    figure.suptitle(f"A layer of experts at constant active size\n{result['dtype']}, {name}", fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
