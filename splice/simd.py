"""Three vector instructions that numba has no word for, as LLVM code. It compiles them for whatever vectors the processor has."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64  # float32 sums held in registers at a time: 4 of AVX-512, 8 of AVX2

INT8, INT32, INT64, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)


def _splat(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(INT32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))


@intrinsic
def add_rows(typingctx, matrix, rows, factors, n, sums, threshold):  # noqa: ANN001, ANN201 - numba's own signature
    """sums[64] += the sum over i < n of factors[i] matrix[rows[i], 64]; gives the bits of the sums above the threshold.

    matrix (float32 [., 64]), rows (int32 [n]), factors (float32 [n]) and sums (float32 [64]) are addresses; matrix and sums are
    multiples of 64 bytes. Not left to the compiler because the sums must stay in registers from the first row to the last.
    """
    signature = types.uint64(types.intp, types.intp, types.intp, types.intp, types.intp, types.float32)

    def codegen(context, builder, signature, args):  # noqa: ANN001, ANN202
        matrix, rows, factors, n, sums, threshold = args
        matrix = builder.inttoptr(matrix, VECTOR.as_pointer())
        rows = builder.inttoptr(rows, INT32.as_pointer())
        factors = builder.inttoptr(factors, FLOAT.as_pointer())
        sums = builder.inttoptr(sums, VECTOR.as_pointer())
        fma_type = ir.FunctionType(VECTOR, [VECTOR] * 3)
        fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fmuladd.v{LANES}f32")
        total = cgutils.alloca_once_value(builder, builder.load(sums, align=64))
        with cgutils.for_range(builder, n) as loop:
            row = builder.zext(builder.load(builder.gep(rows, [loop.index])), INT64)
            weights = builder.load(builder.gep(matrix, [row]), align=64)
            factor = _splat(builder, builder.load(builder.gep(factors, [loop.index])))
            builder.store(builder.call(fma, [weights, factor, builder.load(total)]), total)
        result = builder.load(total)
        builder.store(result, sums, align=64)
        return builder.bitcast(builder.fcmp_ordered(">", result, _splat(builder, threshold)), INT64)

    return signature, codegen


@intrinsic
def lowest_bit(typingctx, mask):  # noqa: ANN001, ANN201
    """The place of the lowest bit set in a uint64 that is not 0."""

    def codegen(context, builder, signature, args):  # noqa: ANN001, ANN202
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(mask), codegen


@intrinsic
def prefetch(typingctx, address):  # noqa: ANN001, ANN201
    """Ask for the cache line of an address that will be read soon."""

    def codegen(context, builder, signature, args):  # noqa: ANN001, ANN202
        pointer = INT8.as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [pointer, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        read, second_level, data = (ir.Constant(INT32, value) for value in (0, 2, 1))
        builder.call(function, [builder.inttoptr(args[0], pointer), read, second_level, data])
        return context.get_dummy_value()

    return types.void(types.intp), codegen
