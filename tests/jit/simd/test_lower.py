"""On CPUs that are not here, kernels use the instructions they were written for."""

import re

import pytest
from numba import prange, types

from kvarn.jit import simd as v
from kvarn.jit.cached import jit

from ..lower import TARGETS, _assembly, lower


@jit
def _row(a, b, n):
    acc, f = v.set_i32(0), v.set_f32(0)
    for i in range(n):
        acc = v.dot_us(acc, v.load_i8(a, 64 * i), v.load_i8(b, 64 * i))
        acc = v.dot_u7s(acc, v.load_i8(a, 64 * i), v.load_i8(b, 64 * i))
        acc = v.dot_ss(acc, v.load_i8(a, 64 * i), v.load_i8(b, 64 * i))
        f = v.fma(v.load_f16(a, 32 * i), v.to_f32(acc), f)
    return v.hsum(f)


@jit(parallel=True)
def _rows(a, b, out, n):
    for r in prange(n):
        v.store(out, 4 * r, _row(a, b, n))


@pytest.mark.parametrize(
    ("target", "instructions"),
    [
        ("avx512", {"vpdpbusd", "vcvtph2ps", "vfmadd231ps"}),
        ("avx2-vnni", {"vpdpbusd", "vpsignb", "vpabsb"}),
        ("neon", {"sdot", "fcvtl", "fmla"}),
        ("neon-i8mm", {"usdot", "sdot"}),
    ],
)
def test_assembly_has_the_instructions(target, instructions):
    assembly = lower(_rows, (types.int64,) * 4, target)
    emitted = set(re.findall(r"^\t(?:{vex}\t)?(\w+)", assembly, re.MULTILINE))
    assert instructions <= emitted
    # No conversion of f16 by a library function: it would not be there at run time.
    assert "__extendhfsf2" not in assembly


@jit
def _wrong(a):
    return v.load_f32(a, 0) + "x"


def test_a_kernel_that_cannot_be_compiled_says_why():
    with pytest.raises(RuntimeError, match="lowering _wrong"):
        lower(_wrong, (types.int64,), "neon")


IR = """
target triple = "x86_64-unknown-linux-gnu"
define <16 x float> @widen(ptr %at) {
  %half = load <16 x half>, ptr %at, align 1
  %wide = fpext <16 x half> %half to <16 x float>
  ret <16 x float> %wide
}
"""


@pytest.mark.parametrize(
    ("target", "instruction"),
    [("generic-arm", "fcvtl"), ("neon", "fcvtl"), ("avx2", "vcvtph2ps"), ("avx512", "vcvtph2ps")],
)
def test_f16_is_converted_by_instructions(target, instruction):
    assembly = _assembly(IR, TARGETS[target])
    assert instruction in assembly
    assert "__extendhfsf2" not in assembly
