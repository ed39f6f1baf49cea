"""Lane by lane: operators, rounding, conversions; and sums and maxima over the lanes."""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils  # noqa: F401
from numba.extending import lower_builtin, type_callable

from .types import (
    ELEM,
    F32,
    I8,
    I32,
    Vec,
    call,
    emits,
    emits_by,
    f32x8,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    i32x8,
    i32x16,
    i64x8,
    same_vec,
    shuffle,
    splat,
    suffix,
    vty,
)

FLOATS, INTS = "f32", "i8 i16 i32 i64"


def _binary(py, on_int, on_float=None):
    """Give Python operator `py` a meaning on `Vec op Vec` and `integer Vec op integer`."""

    @type_callable(py)
    def typer(context):
        def rule(a, c):
            if not isinstance(a, Vec) or (a.elem.startswith("f") and on_float is None):
                return None
            return a if a == c or (isinstance(c, types.Integer) and a.elem[0] == "i") else None

        return rule

    def lower(ctx, b, sig, vals):
        a, c = vals
        if isinstance(sig.args[1], types.Integer):
            width = a.type.element.width
            if c.type.width > width:
                c = b.trunc(c, a.type.element)
            elif c.type.width < width:
                extend = b.sext if sig.args[1].signed else b.zext
                c = extend(c, a.type.element)
            c = splat(b, c, a.type.count)
        return getattr(b, on_float if isinstance(a.type.element, ir.FloatType) else on_int)(a, c)

    lower_builtin(py, Vec, Vec)(lower)
    lower_builtin(py, Vec, types.Integer)(lower)


# `>>` is the logical shift (zeros come in); `sra` is the arithmetic one.
for _py, _i, _f in (
    ("add", "add", "fadd"),
    ("sub", "sub", "fsub"),
    ("mul", "mul", "fmul"),
    ("truediv", "sdiv", "fdiv"),
    ("xor", "xor", None),
    ("and_", "and_", None),
    ("or_", "or_", None),
    ("rshift", "lshr", None),
    ("lshift", "shl", None),
):
    _binary(getattr(operator, _py), _i, _f)
    _binary(getattr(operator, "i" + _py.strip("_")), _i, _f)  # +=, ^=, ...


def fmuladd(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """x * y + z, rounded once."""
    return call(b, f"llvm.fma.{suffix(x.type)}", x.type, x, y, z)


def _unary(name):
    return lambda b, x: call(b, f"llvm.{name}.{suffix(x.type)}", x.type, x)


def _pair(name, fast=()):
    return lambda b, x, y: call(b, f"llvm.{name}.{suffix(x.type)}", x.type, x, y, fast=fast)


fma = emits_by(same_vec(3))(fmuladd)
vmax = emits_by(same_vec(2))(_pair("maxnum", ("nnan",)))
vmin = emits_by(same_vec(2))(_pair("minnum", ("nnan",)))
vabs = emits_by(same_vec(1))(_unary("fabs"))
vsqrt = emits_by(same_vec(1))(_unary("sqrt"))
rint = emits_by(same_vec(1))(_unary("rint"))  # to the nearest integer, ties to even
imax = emits_by(same_vec(2, INTS))(_pair("smax"))
imin = emits_by(same_vec(2, INTS))(_pair("smin"))
iabs = emits_by(same_vec(1, INTS))(
    lambda b, x: call(b, f"llvm.abs.{suffix(x.type)}", x.type, x, ir.Constant(ir.IntType(1), 0))
)
sra = emits_by(lambda v, n: v if isinstance(v, Vec) and isinstance(n, types.Integer) else None)(
    lambda b, v, n: b.ashr(v, splat(b, _resize(b, n, v.type.element), v.type.count))
)
# Hamming weight per lane: vpopcnt, cnt.16b ... or a bit trick, LLVM decides.
ctpop = emits_by(same_vec(1, INTS))(_unary("ctpop"))
ctpop_i32 = ctpop_i64 = ctpop


def _resize(b, n, ty):
    if n.type.width > ty.width:
        return b.trunc(n, ty)
    return b.zext(n, ty) if n.type.width < ty.width else n


set_f32 = emits(f32x16, types.float32)(lambda b, x: splat(b, x, 16))
set_f32x8 = emits(f32x8, types.float32)(lambda b, x: splat(b, x, 8))
set_i32 = emits(i32x16, types.int32)(lambda b, x: splat(b, x, 16))
set_i32x8 = emits(i32x8, types.int32)(lambda b, x: splat(b, x, 8))
set_i64 = emits(i64x8, types.int64)(lambda b, x: splat(b, x, 8))
set_i8 = emits(i8x64, types.int8)(lambda b, x: splat(b, x, 64))
as_bytes = set_i8x32 = emits(i8x32, types.int8)(lambda b, x: splat(b, x, 32))
set_i8x16 = emits(i8x16, types.int8)(lambda b, x: splat(b, x, 16))


def _as(elem, *froms):
    return lambda v: Vec(elem, v.n) if isinstance(v, Vec) and v.elem in froms else None


def _to(elem, how):
    return lambda b, v: getattr(b, how)(v, vty(ELEM[elem], v.type.count))


to_f32 = emits_by(_as("f32", "i8", "i16", "i32"))(_to("f32", "sitofp"))
u_to_f32 = emits_by(_as("f32", "i8", "i16", "i32"))(_to("f32", "uitofp"))
f16_to_f32 = emits_by(_as("f32", "f16"))(_to("f32", "fpext"))
f32_to_f16 = emits_by(_as("f16", "f32"))(_to("f16", "fptrunc"))
widen_i16 = emits_by(_as("i16", "i8"))(_to("i16", "sext"))
widen_u16 = emits_by(_as("i16", "i8"))(_to("i16", "zext"))
widen_i32 = emits_by(_as("i32", "i8", "i16"))(_to("i32", "sext"))
widen_u32 = emits_by(_as("i32", "i8", "i16"))(_to("i32", "zext"))
narrow_i8 = emits_by(_as("i8", "i16", "i32"))(_to("i8", "trunc"))
narrow_i16 = emits_by(_as("i16", "i32"))(_to("i16", "trunc"))
# Values must fit the target type; rounds to nearest, ties to even.
to_i32 = emits_by(_as("i32", "f32"))(lambda b, v: _rounded(b, v, I32))
to_i8 = emits_by(_as("i8", "f32"))(
    # Through i32: there is an instruction for that, and packing follows.
    lambda b, v: b.trunc(_rounded(b, v, I32), vty(I8, v.type.count))
)


def _rounded(b, v, elem):
    return b.fptosi(_unary("rint")(b, v), vty(elem, v.type.count))


def _bits(elem):
    return lambda v: (
        Vec(elem, v.n * ELEM_BITS[v.elem] // ELEM_BITS[elem]) if isinstance(v, Vec) else None
    )


ELEM_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "f32": 32}


def _cast(elem):
    def emit(b, v):
        bits = v.type.count * ELEM_BITS[_name(v.type.element)]
        return b.bitcast(v, vty(ELEM[elem], bits // ELEM_BITS[elem]))

    return emits_by(_bits(elem))(emit)


def _name(ty):
    return next(name for name, known in ELEM.items() if known == ty)


# The same bits, read as another element type.
bits_i8, bits_i16, bits_i32, bits_i64, bits_f16, bits_f32 = (
    _cast(elem) for elem in ("i8", "i16", "i32", "i64", "f16", "f32")
)


def _scalar(elem, result):
    return lambda v: result if isinstance(v, Vec) and v.elem == elem else None


def sum_lanes(b: ir.IRBuilder, v: ir.Value) -> ir.Value:
    """Sum of float lanes, in a tree (a sum in order would be one chain of additions)."""
    name = f"llvm.vector.reduce.fadd.{suffix(v.type)}"
    return call(b, name, F32, ir.Constant(F32, -0.0), v, fast=("reassoc",))


hsum = emits_by(_scalar("f32", types.float32))(sum_lanes)
hsum_high = emits(types.float32, f32x16)(lambda b, v: sum_lanes(b, shuffle(b, v, range(8, 16))))
hmax = emits_by(_scalar("f32", types.float32))(
    lambda b, v: call(b, f"llvm.vector.reduce.fmax.{suffix(v.type)}", F32, v, fast=("nnan",))
)
hsum_i32 = emits_by(_scalar("i32", types.int32))(
    lambda b, v: call(b, f"llvm.vector.reduce.add.{suffix(v.type)}", I32, v)
)
