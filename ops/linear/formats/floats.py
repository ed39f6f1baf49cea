"""Loads plain floats of each type as float32."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit.simd import F16, F32, I16, I32, INTP, at, f32x16, read, vty

FLOAT_TYPES = {"F32": F32, "F16": F16, "BF16": I16}  # how they are loaded


def as_f32(b, x):
    """f32, f16 or the bits of bf16 as f32: a number or a vector."""
    n = x.type.count if isinstance(x.type, ir.VectorType) else 0
    element = x.type.element if n else x.type
    if element == F32:
        return x
    target, words = (vty(F32, n), vty(I32, n)) if n else (F32, I32)
    if element == F16:
        return b.fpext(x, target)
    sixteen = ir.Constant(words, [16] * n if n else 16)
    return b.bitcast(b.shl(b.zext(x, words), sixteen), target)


def _loader(lanes, result):
    @intrinsic(prefer_literal=True)
    def load(typingctx, element, address):
        llty = FLOAT_TYPES[element.literal_value]
        llty = vty(llty, lanes) if lanes else llty

        def codegen(ctx, b, sig, vals):
            return as_f32(b, read(b, at(b, vals[1]), llty))

        return result(element, INTP), codegen

    return load


load_16 = _loader(16, f32x16)
load_float = _loader(0, types.float32)  # (name of the type, address)
