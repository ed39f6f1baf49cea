"""On CPUs that are not here, signing and scanning are vectors, without library calls."""

import re

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.jit.lower import lower
from kvarn.jit.simd import store
from kvarn.ops.attention.keys import decode_key
from kvarn.ops.evict.farthest import farthest
from kvarn.ops.evict.signatures import word_of


@jit
def _all(x, planes, columns, codes, lanes, out):
    """A stored key decoded, signed, and 1,024 slots scanned."""
    decode_key(x, 0, columns, out)
    store(out, 0, word_of(out, 64, planes, 32, 0))
    return farthest(columns, columns, 2, columns, 0, codes, 1024, 4, 900, lanes)


N = types.int64
SIGNATURE = (
    N,
    N,
    types.Array(N, 1, "C"),
    types.Array(types.uint32, 2, "C"),
    types.Array(types.int32, 2, "C"),
    N,
)


@pytest.mark.parametrize(
    ("target", "instructions"),
    [
        ("avx512", {"vfmaddps", "vpopcntb", "vpmaxsd"}),
        ("neon", {"fmla", "cnt", "smax"}),
    ],
)
def test_assembly_has_the_instructions(target: str, instructions: set[str]) -> None:
    assembly = lower(_all, SIGNATURE, target)
    found = {
        re.sub(r"(?<=vfmadd)\d+", "", x) for x in re.findall(r"^\t(\w+)", assembly, re.MULTILINE)
    }
    assert found >= instructions, sorted(found)
    calls = re.findall(r"^\t(?:callq?|bl)\t(\S+)", assembly, re.MULTILINE)
    assert not [c for c in calls if re.search(r"hf|fma|popcount|mem", c)]
