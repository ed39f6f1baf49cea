"""Register tiles of prefill: 16 rows x 4 tokens; with AVX-512 32 rows x 8 tokens (Zen 4: x 4).

    y[t, r] = sum_k W[r, k] x[t, k]

A tile has to fit the registers. Of AVX2's 16, 8 hold sums, 2 weights, 1 a broadcast activation and
1 a product. Of AVX-512's 32, 16 hold the integer sums of a block; each broadcast is used for two
panels, because two loads per cycle would otherwise be the limit. There the float sums, needed once
per block, are in memory. On Zen 4, 8 hold integer sums and 8 float sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils

from ....jit.simd import F32, I8, I16, I32, VARIANT, Tile, at, const, fmuladd, read, splat, vty
from ..arguments import TOKENS, GroupLayout
from ..dots import madd_onto
from ..formats import Format, formatted
from ..sums import tile_of, vectors_of
from .panels import FLOAT_SCALES, PanelLayout, panel_layout, sums_start
from .units import ACC, grain_sums, unit_of_bytes, unit_of_words

FLOATS = vty(F32, 16)
PANELS_PER_TILE = 2 if VARIANT == "avx512" else 1  # of 16 rows


def _bytes_of(b, w):
    """The function that gives four columns of codes of a panel at w."""
    return lambda j: read(b, w, vty(I8, 64), 64 * j)


def _units(b, f: Format, layout: PanelLayout, panels, x):
    """A block of 32: integer sums of each panel, of each token."""
    if PANELS_PER_TILE > 1:
        return grain_sums(b, f, [_bytes_of(b, w) for w in panels], x, 0)
    [w] = panels
    if layout.words:
        return [unit_of_words(b, w, x, None)]
    return [unit_of_bytes(b, f, _bytes_of(b, w), x)]


def _units_256(b, f: Format, layout: PanelLayout, panels, x, s):
    """A block of 256 in a loop of 8 x 32 columns: sums of each panel, of each token.

    They are integers; where scales are floats, floats with d included. LLVM puts the variables in
    registers.
    """
    index, ty = ir.IntType(64), FLOATS if FLOAT_SCALES else ACC
    totals = [[cgutils.alloca_once(b, ty) for _ in x] for _ in panels]
    for total in (total for of_panel in totals for total in of_panel):
        b.store(ir.Constant(ty, None), total)
    with cgutils.for_range(b, ir.Constant(index, 8)) as loop:

        def step(base, size):
            return b.gep(base, [b.mul(loop.index, ir.Constant(index, size))])

        scales = [step(at(b, w, layout.scales), 32 // f.grain * 64) for w in panels]
        codes = [step(w, layout.code_bytes) for w in panels]
        activations = [step(v, 64 if layout.words else 32) for v in x]
        if FLOAT_SCALES:
            begin = [step(v, 32 // f.grain * 4) for v in s] if sums_start(f) else None
            _add_floats(b, f, codes, activations, scales, begin, totals)
        else:
            [[w], [scale], [sums]] = codes, scales, totals
            if layout.words:
                unit = unit_of_words(b, w, activations, scale)
            else:
                unit = unit_of_bytes(b, f, _bytes_of(b, w), activations, scale)
            for total, integers in zip(sums, unit):
                b.store(b.add(b.load(total), integers), total)
    return [[b.load(total) for total in of_panel] for of_panel in totals]


def _add_floats(b, f: Format, panels, x, scales, begin, totals):
    """totals += 32 columns by float scales: two instructions, where 32-bit integers take three.

    begin: where each token has what its integer sums start at, one per scale; or None.
    """
    for start in range(0, 8, f.grain // 4):
        first = begin and [splat(b, read(b, v, I32, start * 4 // f.grain * 4), 16) for v in begin]
        sums = grain_sums(b, f, [_bytes_of(b, w) for w in panels], x, start, first)
        for of_panel, scale, variables in zip(sums, scales, totals):
            factor = read(b, scale, FLOATS, start * 4 // f.grain * 64)
            for integers, total in zip(of_panel, variables):
                b.store(fmuladd(b, b.sitofp(integers, FLOATS), factor, b.load(total)), total)


def _low_256(b, f: Format, layout: PanelLayout, w, s):
    """sum of minimum * sum(x) over the block's grains, <16 x i32> for each token."""
    totals = [const(ACC, 0)] * len(s)
    for j in range(128 // f.grain):
        minima = read(b, w, vty(I16, 32), layout.minima + 64 * j)
        for t, st in enumerate(s):
            pair = b.bitcast(splat(b, read(b, st, I32, 4 * j), 16), vty(I16, 32))
            totals[t] = madd_onto(b, totals[t], minima, pair)
    return totals


def _sums_256(b, f: Format, w, whole, acc, d, s):
    """acc[t] + a block of 256, rounded in the order written:

    scales are integers   acc[t] + whole[t] * (d * d[t]) + below[t] * (low * d[t])
    are floats            acc[t] + (whole[t] + below[t] * low) * d[t]
    """
    layout = panel_layout(f)
    below = _low_256(b, f, layout, w, s) if layout.has_low else [None] * len(s)
    scale, low = (
        read(b, w, FLOATS, place) if is_stored else None
        for place, is_stored in ((layout.d, not FLOAT_SCALES), (layout.low, layout.has_low))
    )
    out = []
    for total, under, before, place in zip(whole, below, acc, d):
        dx = splat(b, read(b, place, F32), 16)
        minima = under and b.sitofp(under, FLOATS)
        if FLOAT_SCALES:
            both = total if minima is None else fmuladd(b, minima, low, total)
            new = fmuladd(b, both, dx, before)
        else:
            new = fmuladd(b, b.sitofp(total, FLOATS), b.fmul(scale, dx), before)
            if minima is not None:
                new = fmuladd(b, minima, b.fmul(low, dx), new)
        out.append(new)
    return out


def scaled_sums(b, f: Format, whole, scale, low, acc, d, s):
    """A block of 32, rounded in the order written:

    codes with a centre   acc[t] + scale * (whole[t] * d[t] + s[t]), s already times -centre
    others                acc[t] + whole[t] * (scale * d[t]) + low * s[t]
    """
    out = []
    for integers, before, *floats in zip(whole, acc, d, s):
        total, (dt, st) = b.sitofp(integers, FLOATS), (splat(b, v, 16) for v in floats)
        if f.centre:
            new = fmuladd(b, scale, fmuladd(b, total, dt, st), before)
        else:
            new = fmuladd(b, total, b.fmul(scale, dt), before)
        if low is not None:
            new = fmuladd(b, low, st, new)
        out.append(new)
    return out


def _add_block(b, f: Format, panels: Sequence, acc: list, x, d, s) -> None:
    """acc of each panel, of each token, += one block of the panels by the tokens.

    Floats of blocks of 32 go token by token, in the order in which their integer sums are done: a
    token's panels share two broadcasts, and LLVM spills fewer registers.
    """
    layout, n = panel_layout(f), len(x)
    if f.block == 256:
        for p, (w, whole) in enumerate(zip(panels, _units_256(b, f, layout, panels, x, s))):
            part = slice(p * n, p * n + n)
            acc[part] = _sums_256(b, f, w, whole, acc[part], d, s)
        return
    wholes = _units(b, f, layout, panels, x)
    scales = [read(b, w, FLOATS, layout.d) for w in panels]
    lows = [read(b, w, FLOATS, layout.low) if layout.has_low else None for w in panels]
    for t in range(n):
        dt, st = ([read(b, places[t], F32)] for places in (d, s))
        for p, (whole, scale, low) in enumerate(zip(wholes, scales, lows)):
            before = [acc[p * n + t]]
            [acc[p * n + t]] = scaled_sums(b, f, [whole[t]], scale, low, before, dt, st)


N_SUMS = PANELS_PER_TILE * TOKENS  # vectors [panel][token]
SUMS_BYTES = 64 * N_SUMS


def _places(b, f: Format, w, panel_bytes, x):
    """Addresses of the block in each panel; of the codes, d and s of each token."""
    layout, w, x = group_layout(f), at(b, w), at(b, x)
    panels = [
        b.gep(w, [b.mul(panel_bytes, ir.Constant(panel_bytes.type, p))])
        for p in range(PANELS_PER_TILE)
    ]
    tokens = [
        [at(b, x, start + t * size) for t in range(TOKENS)]
        for start, size in ((0, layout.row), (layout.d, 4), (layout.s, layout.s_row))
    ]
    return panels, tokens


@formatted(lambda f: Tile("f32", N_SUMS))
def multiply(b, f, sums, w, panel_bytes, x):
    """sums + one block of each panel by the same block of a group of tokens.

    w, x: addresses of the first panel's block and of the group's; panel_bytes: from panel to panel.
    """
    attributes = b.function.attributes
    attributes.alignstack = 32  # vectors spilled to the stack must not cross cache lines
    attributes.add("nounwind")  # llvmlite drops alignstack where it is the only attribute
    acc = vectors_of(b, sums)
    panels, tokens = _places(b, f, w, panel_bytes, x)
    _add_block(b, f, panels, acc, *tokens)
    return tile_of(b, acc)


def group_layout(f: Format) -> GroupLayout:
    """The activations that the kernel of this format reads."""
    centre = f.centre if f.block == 32 or sums_start(f) else 0
    return GroupLayout(f.block, int(panel_layout(f).words), f.grain, centre)
