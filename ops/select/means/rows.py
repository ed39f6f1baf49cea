"""The means of blocks, added to attention of many rows over what each of them read.

    weight  left · exp(cap(scale q . mean key_b)); left: tokens of block b that were not read
    value   mean value_b

As `attend`, for a chunk: products of rows and means, of weights and mean values. They go on with
the sums that `ops.attention.prefill.listed` ended with, by online softmax. Weights below 2^-20 of a
row's sum until then count nothing; where that holds for all rows of a panel, their product with the
values is left out.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import (
    any_above,
    emits,
    f32x16,
    hmax,
    hsum,
    load_f32,
    load_one_f32,
    set_f32,
    vexp,
    vmax,
    vtanh,
)
from ...attention.arguments import Dense, Scoring
from ...attention.layout import Q8_0, SEGMENT, TILE
from ...attention.prefill.blocks import (
    KeyBlock,
    RowBlock,
    add_to_row,
    begin_rows,
    buffers_of,
    finish_rows,
    n_panels,
    panel_scores,
    place_of,
    unpack_tile_keys,
    unpack_tile_values,
)
from ...attention.prefill.tiles import add_values, get_panel, put_panel
from ...attention.shape import shape_of
from ...attention.work import ROWS
from .arguments import RowMemory, RowTail
from .attend import block_of
from .layout import BLOCK, BLOCKS, TILES


class Segments(NamedTuple):
    """Segments first .. stop-1."""

    first: int
    stop: int


_HIDDEN = np.float32(-1e30)
LEAST = np.float32(2**-20)  # of a row's sum: weights below it count nothing


@emits(f32x16, f32x16, f32x16)
def _from(b, x, least):
    """x in lanes where it is at least `least`, 0 in the others."""
    return b.select(b.fcmp_ordered(">=", x, least), x, ir.Constant(x.type, None))


@jit
def _resume(shape, rows, tail, at):
    """Rows' sums, as they were before their output was made of them."""
    for r in range(rows.n):
        place, row = place_of(tail.softmaxes, rows, r), place_of(tail.out, rows, r)
        total, line = load_one_f32(place, 4), at.sums + 4 * r * shape.padded
        v.store(at.maxima, 4 * r, load_one_f32(place, 0))
        v.store(at.totals, 4 * r, total)
        for i in range(tail.out.shape[2]):
            v.store(line, 4 * i, np.float32(load_one_f32(row, 4 * i) * total))


@jit
def _count(items, token, first, to_blocks, left):
    """One token less is left of its block; left: of the blocks from segment `first` on."""
    segment = token // SEGMENT
    block = block_of(items[segment] + to_blocks, token % SEGMENT)
    left[BLOCKS * (segment - first) + block] -= 1


@jit
def _count_left(tail, rows, j, dense, segments, to_blocks, scratch):
    """scratch.left[t, b] = tokens of block b of some segments that token t did not read of KV head
    j."""
    first, stop = segments.first, segments.stop
    base, width = scratch.left[ROWS], BLOCKS * (stop - first)
    for b in range(width):
        base[b] = BLOCK
    for i in range(first * SEGMENT, min(dense.sinks, stop * SEGMENT)):
        _count(tail.items, i, first, to_blocks, base)
    for i in range(max(dense.first, first * SEGMENT), stop * SEGMENT):
        _count(tail.items, i, first, to_blocks, base)
    token = rows.first // rows.group
    for t in range(rows.n // rows.group):
        line, n, i = scratch.left[t], tail.counts[token + t, j], scratch.places[t]
        for b in range(0, width, 16):
            v.store(address(line), b, v.load_i8x16(address(base), b))
        tokens = tail.lists[token + t, j]
        while i < n and np.int64(tokens[i]) < stop * SEGMENT:
            _count(tail.items, np.int64(tokens[i]), first, to_blocks, line)
            i += 1
        scratch.places[t] = i


@jit
def _largest(s, n, softcap):
    """The largest of n scores, which are capped in place."""
    top = set_f32(_HIDDEN)
    for i in range(0, n, TILE):
        x = load_f32(s, 4 * i)
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
            v.store(s, 4 * i, x)
        top = vmax(top, x)
    return hmax(top)


@jit
def _weigh_row(shape, r, softmax, left, n, softcap, at):
    """Row r's scores of n blocks become weights, 0 for those that are too small.

    softmax: address of the row's largest score and sum before any block. Returns a bit for each
    tile of 16 blocks that has weight.
    """
    s, old = at.scores + 4 * r * shape.keys, load_one_f32(at.maxima, 4 * r)
    largest, read_top, least = _largest(s, n, softcap), load_one_f32(softmax, 0), LEAST
    least *= load_one_f32(softmax, 4)
    live, zero = 0, set_f32(np.float32(0.0))
    if np.float32(BLOCK) * hmax(vexp(set_f32(largest - read_top))) < least:
        for i in range(0, n, TILE):
            v.store(s, 4 * i, zero)
        return live
    top = max(old, largest)
    m, cut, total = set_f32(top), set_f32(least) * vexp(set_f32(read_top - top)), zero
    for i in range(0, n, TILE):
        p = _from(v.load_i8_f32(left, i) * vexp(load_f32(s, 4 * i) - m), cut)
        v.store(s, 4 * i, p)
        total = total + p
        if any_above(p, zero):
            live |= 1 << (i // TILE)
    add_to_row(shape, r, top, hsum(total), at)
    return live


@jit
def _add_values(shape, panels, n, live, at):
    """sums += weights times mean values, for the tiles of blocks that have weight."""
    high, padded = shape.panel, shape.padded
    for panel in range(panels):
        tiles, p = live[panel], at.scores + 4 * high * panel * shape.keys
        if tiles == 0:
            continue
        for c in range(shape.vectors):
            place = at.sums + 4 * (high * panel * padded + 16 * c)
            x, sums = at.values + 64 * c * shape.keys, get_panel(shape, place)
            for i in range(0, n, TILE):
                if tiles >> (i // TILE) & 1:
                    for t in range(i, i + TILE):
                        sums = add_values(shape, sums, p + 4 * t, x + 64 * t)
            put_panel(shape, sums, place)


@jit
def _add_segments(shape, tail, rows, segments, to_head, softcap, scratch, at):
    """The means of some segments, whose blocks fit one block of keys."""
    first, live, panels = segments.first, scratch.live, n_panels(shape, rows)
    n = BLOCKS * (segments.stop - first)
    for i in range(0, n, TILE):
        tile = tail.items[first + i // BLOCKS] + to_head
        unpack_tile_keys(shape, tile + i // TILE % TILES * shape.tile_bytes, i, at)
    panel_scores(shape, panels, KeyBlock(tail.items, rows.head, 0, n, 0), at)
    for panel in range(panels):
        live[panel] = 0
    all_live = 0
    for r in range(rows.n):
        softmax, left = place_of(tail.softmaxes, rows, r), address(scratch.left[r // rows.group])
        tiles = _weigh_row(shape, r, softmax, left, n, softcap, at)
        live[r // shape.panel] |= tiles
        all_live |= tiles
    if all_live:
        for i in range(0, n, TILE):
            tile = tail.items[first + i // BLOCKS] + to_head
            unpack_tile_values(shape, tile + i // TILE % TILES * shape.tile_bytes, i, TILE, at)
        _add_values(shape, panels, n, live, at)


def make_row_means(blocks: int) -> DefinedKernel:
    """For rows of 32 * blocks elements."""

    @kernel
    def row_means_kernel(
        share: Share,
        tail: RowTail,
        memory: RowMemory,
        dense: Dense,
        scoring: Scoring,
        head_bytes: int,
        width: int,
    ):
        """Item i is block i % n of rows of `width` query heads, as in `listed_kernel`.

        Reads the means once for 96 rows; up to 4 T H E S / 32 multiply-adds."""
        shape = shape_of(Q8_0, Q8_0, blocks, 1)
        n_tokens, n_heads, _ = tail.q.shape
        n_kv_heads, n_full = tail.counts.shape[1], len(tail.items)
        parts, at_once = n_heads // n_kv_heads // width, shape.keys // BLOCKS
        per_block = ROWS // width
        n_blocks, scratch = (n_tokens + per_block - 1) // per_block, of_thread(memory, share.part)
        at = buffers_of(shape, scratch.works, scratch.newest)
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads * parts:
            head, first = item // n_blocks, item % n_blocks * per_block
            j = head // parts
            n, to_head = min(per_block, n_tokens - first), j * head_bytes
            rows = RowBlock(head, width, first * width, n * width, dense.start)
            begin_rows(shape, tail.q, rows, scoring.scale, at)
            _resume(shape, rows, tail, at)
            for t in range(n):
                scratch.places[t] = 0
            for s in range(0, n_full, at_once):
                segments = Segments(s, min(s + at_once, n_full))
                to_blocks = to_head + TILES * shape.tile_bytes
                _count_left(tail, rows, j, dense, segments, to_blocks, scratch)
                _add_segments(shape, tail, rows, segments, to_head, scoring.softcap, scratch, at)
            finish_rows(shape, rows, at, tail.out)
            item = take(share.ticket)

    return row_means_kernel
