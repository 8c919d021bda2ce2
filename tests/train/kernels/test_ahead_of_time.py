"""Every kernel and every entry of the block table compiled for two GPUs: matrix instructions, registers, shared memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from splice.train.kernels.gpu import blocks
from splice.train.kernels.gpu.compile import PRODUCTS, TARGETS, Shape, compile_all, launches

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="Triton has no compiler there")

SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}  # bytes a program can have
ROWS = [8, 24, 96, 1024]  # of an expert on average: one for each class of the table


def shape(rows, activation="swiglu", dtype=torch.bfloat16):
    return Shape(tokens=4 * rows, d_model=1024, d_expert=256, experts=16, k=4, activation=activation, dtype=dtype)


def check(compiled):
    assert {c.target for c in compiled} == set(TARGETS)
    for c in compiled:
        here = f"{c.kernel} {c.target} {c.tile}"
        assert c.spill_bytes == 0, here
        assert 0 <= c.shared_bytes <= SHARED[c.target], here
        assert 16 <= c.registers <= 255, here
        if c.kernel not in PRODUCTS:
            assert (c.wgmma, c.mma, c.tile) == (0, 0, None), here
        elif c.shape.dtype == torch.float32:
            assert (c.wgmma, c.mma) == (0, 0), here
        elif c.target == "sm_90" and c.tile[0] >= 64:  # the least that wgmma takes
            assert c.wgmma > 0 == c.mma, here
        else:
            assert c.mma > 0 == c.wgmma, here
        if c.kernel in PRODUCTS:  # 16 bytes a copy: the compiler knows how rows are aligned
            copies = [line for line in c.ptx.splitlines() if "cp.async.ca." in line or "cp.async.cg." in line]
            assert copies, here
            assert all("cp.async.cg" in line and "0x10" in line for line in copies), here


@pytest.mark.parametrize("rows", ROWS)
def test_products_of_a_gated_layer(rows):
    compiled = compile_all([shape(rows)], kernels=PRODUCTS)
    assert {c.kernel for c in compiled} == set(PRODUCTS)
    assert rows < 64 or all(c.tile[0] >= 64 for c in compiled)
    check(compiled)


@pytest.mark.parametrize("rows", ROWS)
def test_products_without_a_gate(rows):
    check(compile_all([shape(rows, "relu")], kernels=("up_kernel", "slope_kernel")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_products_of_other_types(dtype):
    check(compile_all([shape(1024, dtype=dtype)], kernels=PRODUCTS))


def test_the_other_kernels():
    names = {noted.kernel.__name__ for noted in launches(shape(96))} - set(PRODUCTS)
    compiled = compile_all([shape(96)], kernels=sorted(names))
    assert {c.kernel for c in compiled} == names >= {"route_kernel", "rank_kernel", "tiles_kernel", "combine_kernel"}
    check(compiled)


def test_sizes_that_are_1_are_constants_to_the_compiler():
    """What Triton makes of a 1 is no tensor: every kernel must take it."""
    compiled = compile_all([Shape(1, 1, 1, 1, 1)], ("sm_90",))
    assert {c.kernel for c in compiled} == {noted.kernel.__name__ for noted in launches(shape(96))}


def test_these_shapes_take_every_entry_of_the_table():
    taken = {}
    for noted in (n for rows in ROWS for activation in ("swiglu", "relu") for n in launches(shape(rows, activation))):
        if "BLOCK_M" in noted.arguments:
            gated = " gated" if noted.arguments.get("ACTIVATION") == "swiglu" else ""
            name = noted.kernel.__name__.removesuffix("_kernel") + gated
            a = noted.arguments
            entry = blocks.Blocks(a["BLOCK_M"], a["BLOCK_N"], a["BLOCK_K"], noted.warps, noted.stages)
            taken.setdefault((name, 2), set()).add(entry)
    assert taken == {key: {b for _, b in entries} for key, entries in blocks.TABLE.items() if key[1] == 2}


def test_in_the_interpreter_it_says_that_there_is_no_compiler():
    code = "from splice.train.kernels.gpu.compile import *; compile_all([Shape(1, 1, 1, 1, 1)])"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert "RuntimeError: TRITON_INTERPRET is set" in done.stderr
