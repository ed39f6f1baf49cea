"""On CPUs that are not here, recurrent layers are vectors of their own, without library calls."""

import re

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.jit.simd import load_f32, store
from kvarn.ops.pointwise.elementwise import silu, softplus
from kvarn.ops.recurrent.delta_rule import products, update_and_products

from ...jit.lower import lower


@jit
def _all(state, q, n, out):
    """Every inner loop once."""
    w, u = products(state, q, q + 4 * n, n)
    store(out, 0, softplus(w))
    store(out, 64, silu(u))
    w, u = update_and_products(state, load_f32(out, 0), q, load_f32(out, 64), q, q + 4 * n, n)
    store(out, 128, w)
    store(out, 192, u)


N = types.int64
SIGNATURE = (N, N, N, N)


@pytest.mark.parametrize(
    ("target", "instructions", "registers"),
    [
        ("avx512", {"vfmadd231ps"}, "zmm"),
        ("avx2", {"vfmadd231ps", "vbroadcastss"}, "ymm"),
        ("neon", {"fmla"}, "v"),
    ],
)
def test_assembly_has_the_instructions(target: str, instructions: set[str], registers: str) -> None:
    assembly = lower(_all, SIGNATURE, target)
    assert set(re.findall(r"^\t(\w+)", assembly, re.MULTILINE)) >= instructions
    assert registers in assembly
    calls = re.findall(r"^\t(?:callq?|bl)\t(\S+)", assembly, re.MULTILINE)
    assert not [c for c in calls if re.search(r"fma|exp|log|mem", c)]
