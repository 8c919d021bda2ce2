"""Every kernel compiled ahead of time, on a machine without a GPU: what it takes of a multiprocessor, and with what it multiplies.

The launches are those of a layer's forward and backward pass, noted on meta tensors, so that blocks, strides and all that
Triton's JIT would specialise on (a number that is 1, or divisible by 16) are the very ones of a run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ..schedule import Schedule
from . import experts, route, schedule
from .launch import Launch, noting, options

TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32)}
PRODUCTS = ("up_kernel", "product_kernel", "slope_kernel", "outer_kernel")  # those that multiply matrices
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}


@dataclass(frozen=True)
class Shape:
    """A layer: T tokens of D numbers, each to k of E experts of width F."""

    tokens: int
    d_model: int
    d_expert: int
    experts: int
    k: int
    activation: str = "swiglu"
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Compiled:
    """A kernel as compiled. tile: (m, n, k) of those that multiply. registers and spill_bytes are of a thread.

    shared_bytes: of a program, static and dynamic. wgmma, mma: how often PTX has Hopper's and Ampere's matrix instruction.
    """

    kernel: str
    shape: Shape
    target: str
    tile: tuple[int, int, int] | None
    warps: int
    stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    wgmma: int
    mma: int
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)


def compile_all(
    shapes: Iterable[Shape], targets: Sequence[str] = tuple(TARGETS), kernels: Sequence[str] | None = None
) -> list[Compiled]:
    """Each kernel that each shape starts, once for each of TARGETS named; kernels: names of those wanted, or all.

    Raises RuntimeError where TRITON_INTERPRET is set: Triton then has no compiler.
    """
    if not isinstance(experts.products.up_kernel, triton.JITFunction):
        raise RuntimeError("TRITON_INTERPRET is set: kernels cannot be compiled in this process; unset it")
    done: dict[tuple[str, ...], Compiled] = {}
    for shape in shapes:
        for noted in launches(shape):
            if kernels is None or noted.kernel.__name__ in kernels:
                for target in targets:
                    key = (
                        target,
                        noted.kernel.__name__,
                        repr(_specialised(noted)),
                        str(noted.warps),
                        str(noted.stages),
                    )
                    if key not in done:
                        done[key] = _compile(noted, shape, target)
    return list(done.values())


def launches(shape: Shape) -> list[Launch]:
    """What a layer starts in routing, forward and backward, in this order. Tokens and experts are lists of both kinds."""

    def new(*size: int, dtype: torch.dtype = shape.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    gated = 2 if shape.activation == "swiglu" else 1
    x = new(shape.tokens, shape.d_model)
    up, down = (
        new(shape.experts, gated * shape.d_expert, shape.d_model),
        new(shape.experts, shape.d_model, shape.d_expert),
    )
    logits = new(shape.tokens, shape.experts, dtype=torch.float32)
    with noting() as noted:
        chosen, weights, mass, square, _ = route.route(logits, shape.k, True)
        schedule.schedule(chosen.flatten(), chosen.flatten(), shape.experts, shape.tokens)
        plan = Schedule(*schedule.schedule(chosen.flatten(), None, shape.experts, shape.tokens))
        out, h = experts.forward(x, up, down, weights.flatten(), plan, shape.activation)
        experts.backward(out, x, h, up, down, weights.flatten(), plan, shape.activation)
        route.backward(weights, mass, square, logits, chosen, True)
    return noted


def _specialised(noted: Launch) -> tuple[dict[str, str], dict[str, object], dict[tuple[int], list[list[object]]]]:
    """Signature, constants and attributes, as Triton's JIT makes them of arguments."""
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(noted.kernel.params):
        value = noted.arguments[parameter.name]
        if parameter.is_constexpr or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        is_tensor = isinstance(value, Tensor)
        signature[parameter.name] = f"*{TYPES[value.dtype]}" if is_tensor else "i32" if value < 2**31 else "i64"
        if is_tensor or (value % 16 == 0 and not parameter.do_not_specialize):  # the allocator's tensors are aligned
            attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _compile(noted: Launch, shape: Shape, target: str) -> Compiled:
    kernel = triton.compile(
        ASTSource(noted.kernel, *_specialised(noted)),
        target=TARGETS[target],
        options=options(noted.warps, noted.stages),
    )
    ptx, cubin = kernel.asm["ptx"], kernel.asm["cubin"]
    used = _resources(cubin)
    a = noted.arguments
    return Compiled(
        noted.kernel.__name__,
        shape,
        target,
        (a["BLOCK_M"], a["BLOCK_N"], a["BLOCK_K"]) if "BLOCK_M" in a else None,
        noted.warps,
        noted.stages,
        used["REG"],
        used["STACK"] + used["LOCAL"],
        used["SHARED"] + kernel.metadata.shared,
        len(re.findall(r"wgmma\.mma_async", ptx)),
        len(re.findall(r"\bmma\.sync", ptx)),
        ptx,
        cubin,
    )


def _resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, LOCAL (bytes of a thread) and SHARED (bytes of a program, static), from cuobjdump."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said)}
