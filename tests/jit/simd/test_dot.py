"""8-bit dot products are exact at the corners of their ranges, in every variant.

Variants that this CPU cannot run are computed with their instructions replaced by the definition
of the instruction (`_defined`), which proves the arithmetic around them; that the instructions are
used is seen in the assembly (test_lower.py).
"""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from llvmlite import ir

from kvarn.jit import simd as v
from kvarn.jit import variant
from kvarn.jit.cached import jit
from kvarn.jit.simd import dot

I32X8, I32X4 = v.Vec("i32", 8), v.Vec("i32", 4)
load_i32x8, load_i32x4 = v.loader(I32X8.ir, I32X8), v.loader(I32X4.ir, I32X4)


def _cases(top, b_low):
    """Bytes a, b with every pair of corner values somewhere in the 64 lanes, and random ones."""
    rng = np.random.default_rng(7)
    a = rng.integers(*top, (40, 64))
    b = rng.integers(b_low, 128, (40, 64))
    corners = [top[0], top[1] - 1, 0, 1]
    for i, x in enumerate(corners):
        for j, y in enumerate((b_low, 127, -1)):
            a[3 * i + j], b[3 * i + j] = x, y
    a[20, ::2], a[20, 1::2], b[20] = top[1] - 1, top[0], 127  # neighbours of opposite sign
    return a, b


def _expected(a, b):
    return (a * b).reshape(40, 16, 4).sum(2) + 5


@jit
def _dots(kind, a, b, acc, out, out8, out4):
    for i in range(0, a.size, 64):
        x, y, s = v.load_i8(a, i), v.load_i8(b, i), v.load_i32(acc, 0)
        x8, y8, s8 = v.load_i8x32(a, i), v.load_i8x32(b, i), load_i32x8(acc, 0)
        x4, y4, s4 = v.load_i8x16(a, i), v.load_i8x16(b, i), load_i32x4(acc, 0)
        if kind == 0:
            s, s8, s4 = v.dot_us(s, x, y), v.dot_us(s8, x8, y8), v.dot_us(s4, x4, y4)
        elif kind == 1:
            s, s8, s4 = v.dot_u7s(s, x, y), v.dot_u7s(s8, x8, y8), v.dot_u7s(s4, x4, y4)
        else:
            s, s8, s4 = v.dot_ss(s, x, y), v.dot_ss(s8, x8, y8), v.dot_ss(s4, x4, y4)
        v.store(out, i, s)
        v.store(out8, i // 2, s8)
        v.store(out4, i // 4, s4)


RANGES = [((0, 256), -128), ((0, 128), -128), ((-128, 128), -127)]  # us, u7s, ss


@pytest.mark.parametrize("kind", range(3), ids=["us", "u7s", "ss"])
def test_dot_products_are_exact(kind):
    a, b = _cases(*RANGES[kind])
    acc, expected = np.full(16, 5, np.int32), _expected(a, b)
    out, out8, out4 = (np.empty((40, n), np.int32) for n in (16, 8, 4))
    _dots(kind, a.astype(np.uint8), b.astype(np.int8), acc, out, out8, out4)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(out8, expected[:, :8])
    np.testing.assert_array_equal(out4, expected[:, :4])


@pytest.mark.skipif("KVARN_SIMD" in os.environ, reason="runs in a process with a variant given")
@pytest.mark.parametrize(
    "name", [n for n, needs in variant.NEEDS.items() if needs <= variant.FEATURES]
)
def test_every_variant_of_this_cpu_is_exact(name):
    if name == v.VARIANT:
        pytest.skip("the variant of this process")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-k", "exact and not every", __file__],
        env={**os.environ, "KVARN_SIMD": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def _defined(b, name, ret, *args, fast=()):
    """What the dot product instructions of other CPUs are defined to compute, in plain IR."""
    if "dot" not in name and "vpdpbusd" not in name:
        return _call(b, name, ret, *args, fast=fast)
    acc, x, y = args
    x_signed = ".sdot" in name
    for j in range(4):
        lanes = range(j, x.type.count, 4)
        wide = [v.shuffle(b, part, lanes) for part in (x, y)]
        extended = [
            (b.sext if signed else b.zext)(part, acc.type)
            for part, signed in zip(wide, (x_signed, True), strict=True)
        ]
        acc = b.add(acc, b.mul(*extended))
    return acc


_call = dot.call
ELSEWHERE = {
    "avx512": (64, dot._vnni_us, dot._vnni_us, dot._vnni_ss),
    "avx2-vnni": (32, dot._vnni_us, dot._vnni_us, dot._avxvnni_ss),
    "neon": (16, dot._neon_us, dot._neon("sdot"), dot._neon("sdot")),
}


def _elsewhere(name):
    size, *emitters = ELSEWHERE[name]
    us, u7s, ss = (v.emits_by(dot._dot_rule)(dot.in_parts(size)(emit)) for emit in emitters)

    @jit
    def kernel(kind, a, b, acc, out):
        for i in range(0, a.size, 64):
            x, y, s = v.load_i8(a, i), v.load_i8(b, i), v.load_i32(acc, 0)
            if kind == 0:
                s = us(s, x, y)
            elif kind == 1:
                s = u7s(s, x, y)
            else:
                s = ss(s, x, y)
            v.store(out, i, s)

    return kernel


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_arithmetic_of_other_cpus_is_exact(name, monkeypatch):
    if name == "avx2-vnni" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("has instructions of x86 that are not replaced: LLVM ends the process")
    monkeypatch.setattr(dot, "call", _defined)
    kernel = _elsewhere(name)
    kernel._cache.disable()  # what is replaced here is no part of the cache's key
    for kind, ranges in enumerate(RANGES):
        a, b = _cases(*ranges)
        out = np.empty((40, 16), np.int32)
        kernel(kind, a.astype(np.uint8), b.astype(np.int8), np.full(16, 5, np.int32), out)
        np.testing.assert_array_equal(out, _expected(a, b), err_msg=str(kind))


def test_parts_of_long_vectors_are_put_together_in_order():
    module = ir.Module()
    kind = ir.FunctionType(v.vty(v.I32, 16), [v.vty(v.I32, 16), *[v.vty(v.I8, 64)] * 2])
    function = ir.Function(module, kind, "f")
    builder = ir.IRBuilder(function.append_basic_block())
    sizes = []

    def emit(b, acc, u, s):
        sizes.append((acc.type.count, u.type.count, s.type.count))
        return acc

    builder.ret(dot.in_parts(16)(emit)(builder, *function.args))
    assert sizes == [(4, 16, 16)] * 4
