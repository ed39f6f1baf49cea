"""Operators, rounding and conversions lane by lane; sums and maxima over the lanes."""

import operator

from llvmlite import ir
from numba import types
from numba.extending import lower_builtin, type_callable

from .types import (
    ELEM,
    F32,
    I8,
    I32,
    INTP,
    Vec,
    call,
    emits,
    emits_by,
    f32x16,
    first_lanes_mask,
    i8x64,
    i32x16,
    i64x8,
    same_vec,
    splat,
    suffix,
    vty,
)

__all__ = [
    "any_above", "bits_i32", "ctpop", "first_lanes", "fma", "fmuladd", "hmax", "hsum",
    "hsum_i32", "imax", "imin", "mask", "narrow_i8", "narrow_i16", "rint", "set_f32", "set_i8",
    "set_i32", "set_i64", "sum_lanes", "to_f32", "to_i8", "to_i32", "vabs", "vmax", "vmin",
    "widen_i16", "widen_i32",
]  # fmt: skip

INTS = "i8 i16 i32 i64"


def _binary(py, on_int, on_float=None):
    """Define the Python operator `py` for `Vec op Vec` and `integer Vec op integer`."""

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


# `>>` is the logical shift: zeros come in.
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
rint = emits_by(same_vec(1))(_unary("rint"))  # to the nearest integer, ties to even
imax = emits_by(same_vec(2, INTS))(_pair("smax"))
imin = emits_by(same_vec(2, INTS))(_pair("smin"))
# Set bits per lane: LLVM emits the CPU's instruction (vpopcnt, cnt) or a bit trick.
ctpop = emits_by(same_vec(1, INTS))(_unary("ctpop"))

set_f32 = emits(f32x16, types.float32)(lambda b, x: splat(b, x, 16))
set_i32 = emits(i32x16, types.int32)(lambda b, x: splat(b, x, 16))
set_i64 = emits(i64x8, types.int64)(lambda b, x: splat(b, x, 8))
set_i8 = emits(i8x64, types.int8)(lambda b, x: splat(b, x, 64))


def _as(elem, *froms):
    return lambda v: Vec(elem, v.n) if isinstance(v, Vec) and v.elem in froms else None


def _to(elem, how):
    return lambda b, v: getattr(b, how)(v, vty(ELEM[elem], v.type.count))


to_f32 = emits_by(_as("f32", "i8", "i16", "i32"))(_to("f32", "sitofp"))
widen_i16 = emits_by(_as("i16", "i8"))(_to("i16", "sext"))
widen_i32 = emits_by(_as("i32", "i8", "i16"))(_to("i32", "sext"))
narrow_i8 = emits_by(_as("i8", "i16", "i32"))(_to("i8", "trunc"))
narrow_i16 = emits_by(_as("i16", "i32"))(_to("i16", "trunc"))
# The same bits, read as the other type: four i8 are one i32.
bits_i32 = emits_by({f32x16: i32x16, i8x64: i32x16}.get)(lambda b, v: b.bitcast(v, vty(I32, 16)))
# Values must fit the target type; rounds to nearest, ties to even.
to_i32 = emits_by(_as("i32", "f32"))(lambda b, v: _rounded(b, v, I32))
to_i8 = emits_by(_as("i8", "f32"))(
    # Through i32: CPUs have an instruction for that, and others that narrow the result.
    lambda b, v: b.trunc(_rounded(b, v, I32), vty(I8, v.type.count))
)


def _rounded(b, v, elem):
    return b.fptosi(_unary("rint")(b, v), vty(elem, v.type.count))


def _scalar(elem, result):
    return lambda v: result if isinstance(v, Vec) and v.elem == elem else None


def sum_lanes(b: ir.IRBuilder, v: ir.Value) -> ir.Value:
    """Sum of float lanes in pairs: a sum in order would be one long chain of additions."""
    name = f"llvm.vector.reduce.fadd.{suffix(v.type)}"
    return call(b, name, F32, ir.Constant(F32, -0.0), v, fast=("reassoc",))


hsum = emits_by(_scalar("f32", types.float32))(sum_lanes)
hmax = emits_by(_scalar("f32", types.float32))(
    lambda b, v: call(b, f"llvm.vector.reduce.fmax.{suffix(v.type)}", F32, v, fast=("nnan",))
)
hsum_i32 = emits_by(_scalar("i32", types.int32))(
    lambda b, v: call(b, f"llvm.vector.reduce.add.{suffix(v.type)}", I32, v)
)


@emits(f32x16, types.float32, INTP)
def first_lanes(b, x, count):
    """x in the first `count` lanes, zeros in the others."""
    return b.select(first_lanes_mask(b, count), splat(b, x, 16), ir.Constant(f32x16.ir, None))


@emits(f32x16, f32x16, INTP, INTP, types.float32)
def mask(b, x, first, stop, fill):
    """x in lanes first .. stop-1, `fill` in the others; both may lie outside 0 .. 16."""
    lane = ir.Constant(vty(I32, 16), list(range(16)))
    first, stop = (splat(b, b.trunc(n, I32), 16) for n in (first, stop))
    inside = b.and_(b.icmp_signed(">=", lane, first), b.icmp_signed("<", lane, stop))
    return b.select(inside, x, splat(b, fill, 16))


@emits(types.boolean, f32x16, f32x16)
def any_above(b, x, limit):
    """Whether any lane of x exceeds that of limit."""
    above = b.bitcast(b.fcmp_ordered(">", x, limit), ir.IntType(16))
    return b.icmp_unsigned("!=", above, ir.Constant(above.type, 0))
