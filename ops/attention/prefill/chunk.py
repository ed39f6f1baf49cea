"""Attention of a chunk of new tokens: blocks of query rows against blocks of keys.

The T * G query rows that share a KV head are cut into blocks of 96. A block walks over the keys
it may see in blocks of 128 (64 for long rows), at absolute multiples of that: K is transposed and V
converted to float32 once, scores and sums are register tiles, and a running maximum rescales the
sums (flash attention). Cuts depend on shapes and positions alone, never on threads.
"""

from typing import NamedTuple

import numpy as np

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take, word
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import hmax, hsum, load_f32, load_one_f32, set_f32, store, vexp, vmax
from ...pointwise.tanh import vtanh
from .. import shape as of
from ..arguments import Chunk, Scoring
from ..lanes import mask
from ..layout import SEGMENT, TILE
from ..rotation import rotate_row
from ..work import ROWS
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

_NEVER = -1e30  # score of a key out of sight: its exponential is 0


class RowBlock(NamedTuple):
    """Query rows first .. first+n-1 of a KV head: row r is head r % group of token r // group."""

    head: int
    group: int
    first: int
    n: int
    start: int
    """Position of token 0."""
    window: int


class Buffers(NamedTuple):
    """Where a block of rows is worked on, see `tiles`: addresses."""

    queries: int
    sums: int
    keys: int
    values: int
    scores: int
    maxima: int
    totals: int
    newest: int


@jit
def unpack(shape, segments, head, start, stop, kt, vs):
    """K transposed and V in float32 for the keys start..stop-1; zeros up to a whole tile."""
    blocks = of.padded(shape) // 32
    for first in range(start, stop, TILE):
        base = word(segments, first // SEGMENT * 8) + head * of.head_bytes(shape)
        base += first % SEGMENT // TILE * of.tile_bytes(shape)
        scales = base + of.scale_offset(shape)
        for i in range(blocks):
            rows = base + i * (of.k_row_bytes(shape) // blocks)
            place = kt + 4 * ((first - start) * of.padded(shape) + 32 * TILE * i)
            unpack_keys(shape, rows, scales + 2 * i, place)
        for r in range(min(TILE, stop - first)):
            row = base + of.v_offset(shape) + r * of.v_row_bytes(shape)
            scale = base + of.v_scale_offset(shape) + r * of.scale_row_bytes(shape)
            for i in range(blocks):
                place = vs + 64 * (first - start + r + 2 * i * of.keys(shape))
                unpack_value(
                    shape, row + i * (of.v_row_bytes(shape) // blocks), scale + 2 * i, place
                )


@jit
def panel_scores(shape, qp, kt, panels, n_keys, newest, first_key, scores):
    """Scores of all panels with all tiles of keys that some row of the panel may see."""
    high, n = of.panel(shape), of.padded(shape)
    for tile in range((n_keys + TILE - 1) // TILE):
        for panel in range(panels):
            if first_key + tile * TILE > word(newest, 8 * panel):
                continue
            sums = no_panel(shape)
            k, q = kt + 64 * tile * n, qp + 4 * high * panel * n
            for e in range(n):
                sums = add_scores(shape, sums, q + 4 * high * e, k + 64 * e)
            put_scores(shape, sums, scores + 4 * (high * panel * of.keys(shape) + TILE * tile))


@jit
def _softmax_row(s, n_keys, lo, hi, softcap, old):
    """exp(cap(s) - max) in place over n_keys, 0 outside lo..hi-1; gives (new maximum, sum)."""
    m = set_f32(old)
    for i in range(0, n_keys, TILE):
        x = load_f32(s, 4 * i)
        if softcap != 0.0:
            x = vtanh(x * set_f32(1.0 / softcap)) * set_f32(softcap)
        if i < lo or i + TILE > hi:
            x = mask(x, lo - i, hi - i, _NEVER)
        store(s, 4 * i, x)
        m = vmax(m, x)
    top = hmax(m)
    m, total = set_f32(top), set_f32(0.0)
    for i in range(0, n_keys, TILE):
        p = vexp(load_f32(s, 4 * i) - m)
        if i < lo or i + TILE > hi:
            p = mask(p, lo - i, hi - i, 0.0)
        store(s, 4 * i, p)
        total = total + p
    return top, hsum(total)


@jit
def _softmax(shape, rows, first_key, n_keys, softcap, at):
    """Online softmax of a block of keys for all rows: probabilities, and sums rescaled.

    Keys that no row of the panel sees are left out. at: Buffers.
    """
    for r in range(rows.n):
        position = rows.start + (rows.first + r) // rows.group
        hi = min(position + 1 - first_key, n_keys)
        lo = max(position - rows.window + 1 - first_key, 0)
        s, m, total = at.scores + 4 * r * of.keys(shape), at.maxima + 4 * r, at.totals + 4 * r
        seen = min(word(at.newest, r // of.panel(shape) * 8) + 1 - first_key, n_keys)
        old, whole = load_one_f32(m, 0), load_one_f32(total, 0)
        top, part = _softmax_row(s, seen, lo, hi, softcap, old)
        if top > old:
            shrink = vexp(set_f32(old - top))
            for c in range(of.vectors(shape)):
                o = 4 * (r * of.padded(shape) + 16 * c)
                store(at.sums, o, load_f32(at.sums, o) * shrink)
            whole *= hmax(shrink)
        store(m, 0, top)
        store(total, 0, whole + part)


@jit
def panel_values(shape, scores, vs, panels, n_keys, newest, first_key, sums):
    """sums += probabilities times V."""
    high, n = of.panel(shape), of.padded(shape)
    for c in range(of.vectors(shape)):
        for panel in range(panels):
            place = sums + 4 * (high * panel * n + 16 * c)
            p = scores + 4 * high * panel * of.keys(shape)
            x = vs + 64 * c * of.keys(shape)
            tile = get_panel(shape, place)
            for t in range(min(n_keys, word(newest, 8 * panel) + 1 - first_key)):
                tile = add_values(shape, tile, p + 4 * t, x + 64 * t)
            put_panel(shape, tile, place)


@jit
def pack_rows(shape, q, stride, n, group, row0, rows, scale, qp, line):
    """Query rows, scaled and rotated where K is, into panels; rows beyond the last are zeros.

    q: the first of the `group` heads of the first token, `stride` bytes from token to token.
    """
    high, padded = of.panel(shape), of.padded(shape)
    panels = (rows + high - 1) // high
    for r in range(panels * high):
        for i in range(padded):
            store(line, 4 * i, np.float32(0))
        if r < rows:
            row = q + (row0 + r) // group * stride + (row0 + r) % group * 4 * n
            for i in range(n):
                store(line, 4 * i, np.float32(load_one_f32(row, 4 * i) * scale))
        if of.rotates_k(shape):
            rotate_row(line, padded, of.rotation(shape))
        for i in range(padded):
            place = (r // high * padded + i) * high + r % high
            store(qp, 4 * place, load_one_f32(line, 4 * i))
    return panels


@jit
def finish_rows(shape, sums, total, stride, n, group, row0, rows, out):
    """out = sums / total, rotated back where V is; out as q of `pack_rows`."""
    padded = of.padded(shape)
    for r in range(rows):
        line = sums + 4 * r * padded
        if of.rotates_v(shape):
            rotate_row(line, padded, of.rotation(shape))
        factor = 1.0 / load_one_f32(total, 4 * r)
        row = out + (row0 + r) // group * stride + (row0 + r) % group * 4 * n
        for i in range(n):
            store(row, 4 * i, np.float32(load_one_f32(line, 4 * i) * factor))


@jit
def _buffers(shape, work, newest):
    """Where the buffers of a thread begin; work: of `work.chunk_work_floats`."""
    n, keys = of.padded(shape), of.keys(shape)
    sums = work + 4 * ROWS * n
    kt = sums + 4 * ROWS * n
    vs = kt + 4 * keys * n
    scores = vs + 4 * keys * n
    maxima = scores + 4 * ROWS * keys
    return Buffers(work, sums, kt, vs, scores, maxima, maxima + 4 * ROWS, newest)


@jit
def _begin_rows(shape, rows, panels, at):
    """Write what each panel sees last, and clear sums; gives the position of the last row."""
    high, last = of.panel(shape), rows.start
    for panel in range(panels):
        last = rows.start + (rows.first + min((panel + 1) * high, rows.n) - 1) // rows.group
        store(at.newest, 8 * panel, last)
    for i in range(panels * high * of.padded(shape)):
        store(at.sums, 4 * i, np.float32(0))
    for r in range(rows.n):
        store(at.maxima, 4 * r, np.float32(_NEVER))
        store(at.totals, 4 * r, np.float32(0))
    return last


@jit
def _rows_block(shape, chunk, rows, scoring, at):
    """One block of query rows of one KV head against all the keys it may see."""
    n, token, keys = chunk.q.shape[2], 4 * chunk.q.shape[1] * chunk.q.shape[2], of.keys(shape)
    place, segments = 4 * rows.head * rows.group * n, address(chunk.segments)
    q, group, row0 = address(chunk.q) + place, rows.group, rows.first
    panels = pack_rows(shape, q, token, n, group, row0, rows.n, scoring.scale, at.queries, at.sums)
    stop = _begin_rows(shape, rows, panels, at) + 1
    oldest = max(rows.start + row0 // group - rows.window + 1, 0)
    for first in range(oldest // keys * keys, stop, keys):
        n_keys = min(stop - first, keys)
        unpack(shape, segments, rows.head, first, first + n_keys, at.keys, at.values)
        panel_scores(shape, at.queries, at.keys, panels, n_keys, at.newest, first, at.scores)
        _softmax(shape, rows, first, n_keys, scoring.softcap, at)
        panel_values(shape, at.scores, at.values, panels, n_keys, at.newest, first, at.sums)
    out = address(chunk.out) + place
    finish_rows(shape, at.sums, at.totals, token, n, group, row0, rows.n, out)


def make_chunk(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    """For KV types and rows of 32 * blocks elements."""

    @kernel
    def chunk_kernel(
        share: Share, chunk: Chunk, n_kv_heads: int, start: int, window: int, scoring: Scoring
    ):
        """Tokens at positions start.., of which each sees `window`.

        About 4 T H E S / 2 multiply-adds for S = T fresh keys.
        """
        shape, part = of.shape_of(k_type, v_type, blocks, 1), share.part
        n_tokens, n_heads, _ = chunk.q.shape
        group = n_heads // n_kv_heads
        n_rows = n_tokens * group
        items = (n_rows + ROWS - 1) // ROWS * n_kv_heads
        at = _buffers(shape, address(chunk.works[part]), address(chunk.newest[part]))
        # Later rows see more keys: they go first, so that no thread ends long after the others.
        item = items - 1 - take(share.ticket)
        while item >= 0:
            row0, head = item // n_kv_heads * ROWS, item % n_kv_heads
            rows = RowBlock(head, group, row0, min(ROWS, n_rows - row0), start, window)
            _rows_block(shape, chunk, rows, scoring, at)
            item = items - 1 - take(share.ticket)

    return chunk_kernel
