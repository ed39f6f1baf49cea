"""On CPUs that are not here, the scans are vectors of their own, without library calls."""

import re

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.ops.select.masks import bits_in, filled_words, kind_of
from kvarn.ops.select.scores import at_least
from kvarn.ops.select.signatures.lots import write_lots
from kvarn.ops.select.signatures.near import near_segment, near_spread, spread_segment
from kvarn.ops.select.sketch.sums import sums_64

from ...jit.lower import lower


@jit
def _all(words, queries, tables, limits, masks, s):
    """Every inner step once, of both widths."""
    near_segment(kind_of(32, 4), words, words, types.uint64(9), queries, tables, limits, s, masks)
    near_segment(kind_of(64, 1), words, words, types.uint64(9), queries, tables, limits, s, masks)
    spread_segment(kind_of(64, 1), words, s)
    near_spread(kind_of(32, 4), words, s, types.uint64(9), queries, tables, limits, masks)
    write_lots(kind_of(32, 4), types.uint64(9), s)
    sums_64(kind_of(64, 4), words, words, 9, tables, limits, masks, s)
    sums_64(kind_of(128, 1), words, words, 9, tables, limits, masks, s)
    return filled_words(kind_of(32, 4), masks) + at_least(s, 0.0) + bits_in(masks)


N = types.int64


@pytest.mark.parametrize(
    ("target", "instructions"),
    [
        ("avx512", {"vpopcntb", "vpermt2d", "vpcmpgtb", "vpshufb"}),
        ("avx512-2019", {"vpshufb", "vpermt2d", "vpcmpgtb"}),
        ("avx2", {"vpshufb", "vpmovmskb", "vpaddsb"}),
        ("neon", {"cnt", "tbl", "sqadd"}),
    ],
)
def test_assembly_has_the_instructions(target: str, instructions: set[str]) -> None:
    assembly = lower(_all, (N,) * 6, target)
    assert set(re.findall(r"^\t(\w+)", assembly, re.MULTILINE)) >= instructions
    calls = re.findall(r"^\t(?:callq?|bl)\t(\S+)", assembly, re.MULTILINE)
    assert not [c for c in calls if re.search(r"hf|popcount|mem", c)]


@jit
def _each(words, queries, tables, limits, masks, s):
    """Every inner step once, of one width and for one query."""
    near_segment(kind_of(64, 1), words, words, types.uint64(9), queries, tables, limits, s, masks)
    spread_segment(kind_of(64, 1), words, s)
    near_spread(kind_of(64, 1), words, s, types.uint64(9), queries, tables, limits, masks)
    write_lots(kind_of(64, 1), types.uint64(9), s)
    sums_64(kind_of(64, 1), words, words, 9, tables, limits, masks, s)
    return filled_words(kind_of(64, 1), masks) + at_least(s, 0.0) + bits_in(masks)


def test_a_cpu_without_lookups_has_a_way() -> None:
    assert "vadd" in lower(_each, (N,) * 6, "generic-riscv")
