"""Functions of float32 lanes that no CPU has an instruction for."""

from llvmlite import ir

from .lanes import fmuladd
from .types import I32, call, const, emits_by, same_vec, suffix, vty

__all__ = ["emit_exp", "vexp"]


def emit_exp(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """exp(x) per lane, about 1 ulp; below -87.3 gives about 1e-38, never a NaN."""
    ty, ity, kind = x.type, vty(I32, x.type.count), suffix(x.type)
    x = call(b, f"llvm.maxnum.{kind}", ty, x, const(ty, -87.3), fast=("nnan",))
    x = call(b, f"llvm.minnum.{kind}", ty, x, const(ty, 88.3), fast=("nnan",))
    n = call(b, f"llvm.rint.{kind}", ty, b.fmul(x, const(ty, 1.44269504)))
    # ln 2 in two parts (Cody and Waite), so that n * ln 2 is exact to twice the precision.
    r = fmuladd(b, n, const(ty, -0.693359375), x)
    r = fmuladd(b, n, const(ty, 2.12194440e-4), r)
    p = const(ty, 1 / 5040)
    for c in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = fmuladd(b, p, r, const(ty, c))
    scale = b.shl(b.fptosi(n, ity), const(ity, 23))  # p * 2**n by exponent bits
    return b.bitcast(b.add(b.bitcast(p, ity), scale), ty)


vexp = emits_by(same_vec(1))(emit_exp)
