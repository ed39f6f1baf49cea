"""On CPUs that are not here, attention is vectors of their own, without library calls."""

import re

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.jit.lower import lower
from kvarn.ops.attention import shape as of
from kvarn.ops.attention.append import encode_block
from kvarn.ops.attention.decode import block, scores
from kvarn.ops.attention.prefill import chunk


@jit
def _all(q, base, n, work, newest, out):
    """Every inner step once: encoding, a decode step, a chunk step."""
    encode_block(0, q, base, work)
    encode_block(1, q, base, work)
    encode_block(2, q, base, work)
    shape = of.shape_of(0, 1, 2, 4)
    scores.key_scores(shape, q, base, 0, n, work + 65536, work)
    block.attend_block(shape, q, base, 0, n, 1, 0.0, (base, n, n), work, out, newest, work, base)
    chunk.panel_scores(shape, q, base, 8, n, newest, 0, work)
    chunk.panel_values(shape, work, base, 8, n, newest, 0, out)


N = types.int64
SIGNATURE = (N, N, N, N, N, N)


@pytest.mark.parametrize(
    ("target", "instructions", "registers"),
    [
        ("avx512", {"vcvtps2ph", "vcvtph2ps", "vfmadd231ps"}, "zmm31"),
        ("neon", {"fcvtn", "fcvtl", "fmla"}, "v31"),
    ],
)
def test_assembly_has_the_instructions(target: str, instructions: set[str], registers: str) -> None:
    assembly = lower(_all, SIGNATURE, target)
    assert set(re.findall(r"^\t(\w+)", assembly, re.MULTILINE)) >= instructions
    assert registers in assembly
    calls = re.findall(r"^\t(?:callq?|bl)\t(\S+)", assembly, re.MULTILINE)
    assert not [c for c in calls if re.search(r"hf|fma|round|exp|mem", c)]
