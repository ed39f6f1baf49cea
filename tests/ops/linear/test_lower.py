"""On CPUs that are not here, rows and tiles use the dot products they were written for."""

import re

import pytest
from numba import types

from kvarn.ops.cache import jit
from kvarn.ops.linear import rows, tiles
from kvarn.ops.linear.kformats import KINDS
from kvarn.ops.lower import lower
from kvarn.ops.simd import hsum, set_f32

Q8_0, Q6_K = KINDS["Q8_0"], KINDS["Q6_K"]


@jit
def _row_q8_0(w, x, d, s):
    acc, low = rows.add_blocks(Q8_0, 4, set_f32(0.0), rows.no_low(Q8_0), w, x, d, s)
    return hsum(acc) + hsum(low)


@jit
def _row_q6_k(w, x, d, s):
    acc, low = rows.add_blocks(Q6_K, 1, set_f32(0.0), rows.no_low(Q6_K), w, x, d, s)
    return hsum(acc) + hsum(low)


@jit
def _tile_q8_0(w, x, d, s, out):
    sums = tiles.multiply(Q8_0, tiles.no_sums(), w, x, 256, d, 32, s, 32)
    tiles.store_tokens(out, 0, 64, sums)


@pytest.mark.parametrize(
    ("kernel", "target", "instructions"),
    [
        (_row_q8_0, "avx512", {"vpdpbusd", "vcvtph2ps"}),
        (_tile_q8_0, "avx512", {"vpdpbusd", "vfmadd231ps"}),
        (_row_q6_k, "avx2", {"vpmaddubsw", "vpmaddwd"}),
        (_tile_q8_0, "avx2", {"vpmaddwd", "vpbroadcastd"}),
        (_row_q8_0, "neon", {"sdot", "fcvtl"}),
        (_row_q6_k, "neon", {"sdot"}),
        (_tile_q8_0, "neon", {"sdot", "fmla"}),
    ],
)
def test_assembly_has_the_instructions(kernel, target, instructions):
    assembly = lower(kernel, (types.int64,) * kernel.py_func.__code__.co_argcount, target)
    found = set(re.findall(r"^\t(?:{vex} )?(\w+)", assembly, re.MULTILINE))
    assert instructions <= found
    assert "__extendhfsf2" not in assembly
