"""On CPUs that are not here, rows and tiles use the dot products they were written for."""

import re
from collections import Counter

import pytest
from numba import types

from kvarn.jit.cached import jit
from kvarn.ops.linear.arguments import Output, Quantised
from kvarn.ops.linear.decode import interleaved, rows
from kvarn.ops.linear.formats import KINDS
from kvarn.ops.linear.prefill import tiles
from kvarn.ops.linear.prefill.tiles import N_SUMS
from kvarn.ops.linear.sums import no_sums, store_rows, store_sums

from ...jit.lower import lower

Q8_0, Q4_0, Q6_K, Q4_K = (KINDS[name] for name in ("Q8_0", "Q4_0", "Q6_K", "Q4_K"))


@jit
def _row_q8_0(w, x, d, s, out):
    sums = rows.no_row_sums(Q8_0, 1)
    sums = rows.add_blocks(Q8_0, 4, sums, w, Quantised(x, d, s), 0)
    rows.store_totals(sums, Output(out, 0, 1))


@jit
def _row_q6_k(w, x, d, s, out):
    sums = rows.no_row_sums(Q6_K, 1)
    sums = rows.add_blocks(Q6_K, 1, sums, w, Quantised(x, d, s), 0)
    rows.store_totals(sums, Output(out, 0, 1))


@jit
def _row_q4_0(w, x, d, s, out):
    sums = rows.no_row_sums(Q4_0, 1)
    sums = rows.add_blocks(Q4_0, 4, sums, w, Quantised(x, d, s), 0)
    rows.store_totals(sums, Output(out, 0, 1))


@jit
def _row_q4_k(w, x, d, s, out):
    sums = rows.no_row_sums(Q4_K, 1)
    sums = rows.add_blocks(Q4_K, 1, sums, w, Quantised(x, d, s), 0)
    rows.store_totals(sums, Output(out, 0, 1))


@jit
def _tile_q8_0(w, x, out):
    store_sums(out, tiles.multiply(Q8_0, no_sums(N_SUMS), w, 0, x))


@jit
def _tile_q4_k(w, x, out):
    store_sums(out, tiles.multiply(Q4_K, no_sums(N_SUMS), w, 0, x))


@jit
def _panel_q4_0(w, x, d, s, out):
    sums = interleaved.add_block(Q4_0, no_sums(1), w, Quantised(x, d, s), 0)
    store_rows(1, sums, Output(out, 0, 1))


@pytest.mark.parametrize(
    ("kernel", "target", "instructions"),
    [
        (_row_q8_0, "avx512", {"vpdpbusd", "vcvtph2ps"}),
        (_row_q6_k, "avx512", {"vpmaddubsw", "vpshufb"}),
        (_row_q4_k, "avx512", {"vpmaddubsw", "vprorvd"}),
        (_tile_q8_0, "avx512", {"vpdpbusd", "vfmaddps"}),
        (_tile_q4_k, "avx512", {"vpdpbusd", "vfmaddps"}),
        (_panel_q4_0, "avx512", {"vpdpbusd", "vfmaddps"}),
        (_row_q6_k, "avx2", {"vpmaddubsw", "vpmaddwd"}),
        (_tile_q8_0, "avx2", {"vpmaddwd", "vpbroadcastd"}),
        (_panel_q4_0, "avx2", {"vpmaddubsw", "vpbroadcastd"}),
        (_row_q8_0, "neon", {"sdot", "fcvtl"}),
        (_row_q6_k, "neon", {"sdot"}),
        (_tile_q8_0, "neon", {"sdot", "fmla"}),
        (_panel_q4_0, "neon", {"sdot", "fcvtl"}),
    ],
)
def test_assembly_has_the_instructions(kernel, target, instructions):
    counts = _instructions(kernel, target)
    assert instructions <= counts.keys()
    assert "__extendhfsf2" not in counts


@pytest.mark.parametrize(
    ("kernel", "count"), [(_row_q4_0, {"vpmaddwd": 1}), (_row_q4_k, {"vpshufb": 9})]
)
def test_rows_on_avx2_take_the_short_way(kernel, count):
    """Four blocks widened at once, one shuffle per scale, no inserts into undefined lanes."""
    counts = _instructions(kernel, "avx2")
    assert {name: counts[name] for name in count} == count
    assert not {"vpinsrw", "vpermq", "vpbroadcastw"} & counts.keys()


def _instructions(kernel, target):
    """How often each stands in the assembly; what is called counts too."""
    assembly = lower(kernel, (types.int64,) * kernel.py_func.__code__.co_argcount, target)
    assembly = re.sub(r"(?<=\tvfmadd)\d+", "", assembly)  # which of its operands it replaces
    return Counter(re.findall(r"^\t(?:{vex} )?(\w+)", assembly, re.MULTILINE)) + Counter(
        re.findall(r"__extendhfsf2", assembly)
    )
