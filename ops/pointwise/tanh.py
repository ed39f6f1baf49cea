"""tanh of float32 vectors."""

from ...jit.simd import FLOATS, call, const, emit_exp, emits_by, fmuladd, same_vec, suffix

# x + x^3 P(x^2) below 0.625 (Cephes tanhf), where 1 - 2 / (e^2x + 1) would lose digits.
_SMALL = 0.625
_P = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)


def emit_tanh(b, x):
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


vtanh = emits_by(same_vec(1, FLOATS))(emit_tanh)
