"""On CPUs that are not here, signing and scanning are vectors, without library calls."""

import re

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.jit.launch.views import numba_type
from kvarn.jit.simd import store
from kvarn.ops.attention.keys import decode_key
from kvarn.ops.attention.layout import StoredLayout
from kvarn.ops.evict.arguments import Signatures
from kvarn.ops.evict.signatures import Evictable, farthest
from kvarn.ops.select.signatures.encode import signature

from ...jit.lower import lower


@jit
def _all(x, planes, columns, codes, lanes, out, layout):
    """A stored key decoded, signed, and 1,024 slots scanned."""
    decode_key(x, 0, layout, out)
    store(out, 0, signature(out, planes, columns, out))
    signatures, evictable = Signatures(columns, columns), Evictable(1024, 4, 900)
    return farthest(signatures, columns, 0, codes, 64, evictable, lanes)


N = types.int64
SIGNATURE = (
    N,
    N,
    types.Array(N, 1, "C"),
    types.Array(types.uint32, 2, "C"),
    types.Array(types.int32, 2, "C"),
    N,
    numba_type(StoredLayout),
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
    mnemonics = {
        re.sub(r"(?<=vfmadd)\d+", "", x) for x in re.findall(r"^\t(\w+)", assembly, re.MULTILINE)
    }
    assert mnemonics >= instructions, sorted(mnemonics)
    calls = re.findall(r"^\t(?:callq?|bl)\t(\S+)", assembly, re.MULTILINE)
    assert not [c for c in calls if re.search(r"hf|fma|popcount|mem", c)]
