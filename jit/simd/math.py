"""Functions of float32 lanes that no CPU has an instruction for."""

from llvmlite import ir

from .lanes import fmuladd
from .types import I32, call, const, emits_by, same_vec, suffix, vty

__all__ = ["emit_exp", "vexp", "vtanh"]

# tanh(x) = x + x^3 P(x^2) below 0.625 (Cephes tanhf), where 1 - 2 / (e^2x + 1) would lose digits.
_SMALL = 0.625
_P = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


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


@emits_by(same_vec(1))
def vtanh(b, x):
    """tanh(x) per lane, about 2 ulp."""
    ty = x.type
    z, p = b.fmul(x, x), const(ty, _P[0])
    for c in _P[1:]:
        p = fmuladd(b, p, z, const(ty, c))
    near = fmuladd(b, b.fmul(p, z), x, x)
    size = call(b, f"llvm.fabs.{suffix(ty)}", ty, x)
    e = b.fadd(emit_exp(b, b.fadd(size, size)), const(ty, 1.0))
    far = b.fsub(const(ty, 1.0), b.fdiv(const(ty, 2.0), e))
    far = call(b, f"llvm.copysign.{suffix(ty)}", ty, far, x)
    return b.select(b.fcmp_ordered("<", size, const(ty, _SMALL)), near, far)
