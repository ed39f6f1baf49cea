"""Blocks of query rows times blocks of keys: the parts of attention of chunks.

begin_rows     packs queries and clears their sums
add_keys       for each block of keys: scores, online softmax, probabilities times V
finish_rows    output = sums / totals

Scores alone: unpack_keys_of, panel_scores. Tiles that are not a context's: unpack_tile_keys,
unpack_tile_values.
"""

from typing import NamedTuple

import numpy as np

from ....jit.cached import jit
from ....jit.launch.arguments import I64_1D
from ....jit.launch.views import address
from ....jit.simd import hmax, hsum, load_f32, load_one_f32, set_f32, store, vexp, vmax, vtanh
from ..layout import TILE
from ..rotation import rotate_row
from ..shape import tile_of
from ..work import HIDDEN, ROWS
from .tiles import (
    add_scores,
    add_values,
    get_panel,
    no_panel,
    put_panel,
    put_scores,
    unpack_keys,
    unpack_value,
)


class RowBlock(NamedTuple):
    """Query rows first .. first+n-1 of a KV head: row r is head r % group of token r // group."""

    head: int
    group: int
    first: int
    n: int
    start: int
    """Position of token 0."""


class KeyBlock(NamedTuple):
    """Keys first .. first+n-1 of a KV head."""

    segments: I64_1D
    head: int
    first: int
    n: int
    position: int
    """Of key `first`. No row sees a key whose position is after its own."""


class Buffers(NamedTuple):
    """A thread's memory for a block of rows: addresses of the arrays of `tiles`, of maxima and
    totals float32[row], and `newest`: the position of the last row of each panel."""

    queries: int
    sums: int
    keys: int
    values: int
    scores: int
    maxima: int
    totals: int
    newest: I64_1D


@jit
def buffers_of(shape, work, newest):
    """The Buffers in a thread's floats `work`, see `work.chunk_work_floats`."""
    queries, n, keys = address(work), shape.padded, shape.keys
    sums = queries + 4 * ROWS * n
    kt = sums + 4 * ROWS * n
    vs = kt + 4 * keys * n
    scores = vs + 4 * keys * n
    maxima = scores + 4 * ROWS * keys
    return Buffers(queries, sums, kt, vs, scores, maxima, maxima + 4 * ROWS, newest)


@jit
def n_panels(shape, rows):
    """The number of register tiles of a block's rows."""
    return (rows.n + shape.panel - 1) // shape.panel


@jit
def position_of(rows, r):
    """Position of row r of a block."""
    return rows.start + (rows.first + r) // rows.group


@jit
def place_of(x, rows, r):
    """Address of row r in x float32 (T, H, E)."""
    row = rows.first + r
    head = rows.head * rows.group + row % rows.group
    return address(x) + 4 * x.shape[2] * (row // rows.group * x.shape[1] + head)


@jit
def begin_rows(shape, q, rows, scale, at):
    """Pack query rows of q float32 (T, H, E) and clear their sums. Returns the last row's position.

    Scales rows, and rotates them if K is. Fills panels up with rows of zeros.
    """
    high, padded, n, line = shape.panel, shape.padded, q.shape[2], at.sums
    panels = n_panels(shape, rows)
    for r in range(panels * high):
        for i in range(padded):
            store(line, 4 * i, np.float32(0))
        if r < rows.n:
            row = place_of(q, rows, r)
            for i in range(n):
                store(line, 4 * i, np.float32(load_one_f32(row, 4 * i) * scale))
        if shape.rotates_k:
            rotate_row(line, padded, shape.rotation)
        for i in range(padded):
            place = (r // high * padded + i) * high + r % high
            store(at.queries, 4 * place, load_one_f32(line, 4 * i))
    for panel in range(panels):
        at.newest[panel] = position_of(rows, min((panel + 1) * high, rows.n) - 1)
    for i in range(panels * high * padded):
        store(at.sums, 4 * i, np.float32(0))
    for r in range(rows.n):
        store(at.maxima, 4 * r, np.float32(HIDDEN))
        store(at.totals, 4 * r, np.float32(0))
    return at.newest[panels - 1]


@jit
def finish_rows(shape, rows, at, out):
    """out float32 (T, H, E) = sums / totals, rotated back if V is."""
    padded = shape.padded
    for r in range(rows.n):
        line = at.sums + 4 * r * padded
        if shape.rotates_v:
            rotate_row(line, padded, shape.rotation)
        factor, row = 1.0 / load_one_f32(at.totals, 4 * r), place_of(out, rows, r)
        for i in range(out.shape[2]):
            store(row, 4 * i, np.float32(load_one_f32(line, 4 * i) * factor))


@jit
def put_softmaxes(rows, at, out):
    """Maxima and totals of the rows into out float32 (T, H, 2)."""
    for r in range(rows.n):
        place = place_of(out, rows, r)
        store(place, 0, load_one_f32(at.maxima, 4 * r))
        store(place, 4, load_one_f32(at.totals, 4 * r))


@jit
def unpack_tile_keys(shape, tile, i, at):
    """K of a tile transposed, in float32, as keys i .. i+15 of a block."""
    blocks, scales = shape.padded // 32, tile + shape.scale_offset
    for c in range(blocks):
        rows = tile + c * (shape.k_row_bytes // blocks)
        place = at.keys + 4 * (i * shape.padded + 32 * TILE * c)
        unpack_keys(shape, rows, scales + 2 * c, place)


@jit
def unpack_tile_values(shape, tile, i, n, at):
    """The first n V rows of a tile in float32, as keys i .. i+n-1 of a block."""
    blocks = shape.padded // 32
    for r in range(n):
        row = tile + shape.v_offset + r * shape.v_row_bytes
        scale = tile + shape.scale_offset + shape.v_scale + r * shape.scale_row_bytes
        for c in range(blocks):
            place = at.values + 64 * (i + r + 2 * c * shape.keys)
            source = row + c * (shape.v_row_bytes // blocks)
            unpack_value(shape, source, scale + 2 * c, place)


@jit
def unpack_keys_of(shape, keys, at):
    """K of a block transposed, in float32, in whole tiles."""
    for i in range(0, keys.n, TILE):
        tile = tile_of(shape, keys.segments, keys.head, keys.first + i)
        unpack_tile_keys(shape, tile, i, at)


@jit
def _unpack_values(shape, keys, at):
    """V of a block in float32."""
    for i in range(0, keys.n, TILE):
        tile = tile_of(shape, keys.segments, keys.head, keys.first + i)
        unpack_tile_values(shape, tile, i, min(TILE, keys.n - i), at)


@jit
def panel_scores(shape, panels, keys, at):
    """Scores of each panel with all tiles of keys that any of its rows may see."""
    high, n = shape.panel, shape.padded
    for tile in range((keys.n + TILE - 1) // TILE):
        for panel in range(panels):
            if keys.position + tile * TILE > at.newest[panel]:
                continue
            sums = no_panel(shape)
            k, q = at.keys + 64 * tile * n, at.queries + 4 * high * panel * n
            for e in range(n):
                sums = add_scores(shape, sums, q + 4 * high * e, k + 64 * e)
            place = at.scores + 4 * (high * panel * shape.keys + TILE * tile)
            put_scores(shape, sums, place)


@jit
def _n_seen(keys, newest):
    """The number of keys up to the position `newest`."""
    return min(keys.n, newest + 1 - keys.position)


@jit
def panel_values(shape, panels, keys, at):
    """sums += probabilities times V."""
    high, n = shape.panel, shape.padded
    for c in range(shape.vectors):
        for panel in range(panels):
            place = at.sums + 4 * (high * panel * n + 16 * c)
            p = at.scores + 4 * high * panel * shape.keys
            x = at.values + 64 * c * shape.keys
            tile = get_panel(shape, place)
            for t in range(_n_seen(keys, at.newest[panel])):
                tile = add_values(shape, tile, p + 4 * t, x + 64 * t)
            put_panel(shape, tile, place)


@jit
def add_to_row(shape, r, top, part, at):
    """Set row r's maximum to `top` and add `part` to its total; rescales earlier sums."""
    m, total = at.maxima + 4 * r, at.totals + 4 * r
    old, whole = load_one_f32(m, 0), load_one_f32(total, 0)
    if top > old:
        shrink = vexp(set_f32(old - top))
        for c in range(shape.vectors):
            o = 4 * (r * shape.padded + 16 * c)
            store(at.sums, o, load_f32(at.sums, o) * shrink)
        whole *= hmax(shrink)
    store(m, 0, top)
    store(total, 0, whole + part)


def make_add_keys(seen_by, hide):
    """A function that adds a block of keys to the sums of a block of rows, by online softmax.

    seen_by(rows, keys, r, rule)   the keys that row r sees, in a form for `hide`
    hide(x, seen, i, fill)         the 16 numbers x of keys i .. i+15, with `fill` for unseen keys
    """

    @jit
    def softmax_row(s, n_keys, seen, softcap, old):
        """exp(cap(s) - max) in place, 0 for unseen keys. Returns (new maximum, sum)."""
        m = set_f32(old)
        for i in range(0, n_keys, TILE):
            x = load_f32(s, 4 * i)
            if softcap != 0.0:
                x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
            x = hide(x, seen, i, HIDDEN)
            store(s, 4 * i, x)
            m = vmax(m, x)
        top = hmax(m)
        m, total = set_f32(top), set_f32(0.0)
        for i in range(0, n_keys, TILE):
            p = hide(vexp(load_f32(s, 4 * i) - m), seen, i, 0.0)
            store(s, 4 * i, p)
            total = total + p
        return top, hsum(total)

    @jit
    def add_keys(shape, rows, keys, rule, softcap, at):
        unpack_keys_of(shape, keys, at)
        _unpack_values(shape, keys, at)
        panels = n_panels(shape, rows)
        panel_scores(shape, panels, keys, at)
        for r in range(rows.n):
            s, old = at.scores + 4 * r * shape.keys, load_one_f32(at.maxima, 4 * r)
            n_keys = _n_seen(keys, at.newest[r // shape.panel])
            top, part = softmax_row(s, n_keys, seen_by(rows, keys, r, rule), softcap, old)
            add_to_row(shape, r, top, part, at)
        panel_values(shape, panels, keys, at)

    return add_keys
