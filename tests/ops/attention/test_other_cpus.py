"""On CPUs that are not here, attention is vectors of their own, without library calls."""

import re

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.ops.attention.append import encode_block
from kvarn.ops.attention.decode import block, integer_keys, scores
from kvarn.ops.attention.layout import F16, Q4_0, Q8_0
from kvarn.ops.attention.prefill import blocks
from kvarn.ops.attention.shape import shape_of

from ...jit.lower import lower


@jit
def _all(q, base, n, work, newest, out):
    """Every inner loop once: of encoding, of decode, of a chunk."""
    encode_block(F16, n, q, base, work)
    encode_block(Q8_0, n, q, base, work)
    encode_block(Q4_0, n, q, base, work)
    shape, stored = shape_of(F16, Q8_0, 2, 4), shape_of(Q8_0, Q8_0, 2, 4)
    scores.key_scores(shape, q, base, 0, n, work + 65536, work, base)
    integer_keys.split_query(stored, out)
    scores.key_scores(stored, out, base, 0, n, work + 65536, work, base)
    rows = block.HeadBlock(q, 1, 0.0, work, out, out, work)
    block.attend_block(shape, rows, base, 0, n, block.LogWeights(base, n, n), base)
    keys, at = (
        blocks.KeyBlock(newest, 0, 0, n, 0),
        blocks.Buffers(q, out, base, base, work, out, out, newest),
    )
    blocks.panel_scores(shape, 8, keys, at)
    blocks.panel_values(shape, 8, keys, at)


N = types.int64
SIGNATURE = (N, N, N, N, types.Array(N, 1, "C"), N)


@pytest.mark.parametrize(
    ("target", "instructions", "registers"),
    [
        ("avx512", {"vcvtps2ph", "vcvtph2ps", "vfmadd231ps", "vpdpbusd"}, "zmm31"),
        ("neon", {"fcvtn", "fcvtl", "fmla"}, "v31"),
    ],
)
def test_assembly_has_the_instructions(target: str, instructions: set[str], registers: str) -> None:
    assembly = lower(_all, SIGNATURE, target)
    assert set(re.findall(r"^\t(\w+)", assembly, re.MULTILINE)) >= instructions
    assert registers in assembly
    calls = re.findall(r"^\t(?:callq?|bl)\t(\S+)", assembly, re.MULTILINE)
    assert not [c for c in calls if re.search(r"hf|fma|round|exp|mem", c)]
