"""Attention of a chunk of new tokens: blocks of query rows against blocks of keys.

The T * G query rows that share a KV head are cut into blocks of 96. A block walks over the keys
it may see in blocks of 128 (64 for long rows), at absolute multiples of that: K is transposed and V
converted to float32 once, scores and sums are register tiles, and a running maximum rescales the
sums (flash attention). Cuts depend on shapes and positions alone, never on threads.
"""

from numba import prange

from ..cache import jit
from ..pointwise.tanh import vtanh
from ..simd import hmax, hsum, load_f32, set_f32, store, vexp, vmax
from . import shape as of
from .layout import SEGMENT, TILE
from .rotation import rotate_row
from .steps import mask
from .tiles import (
    get_panel,
    no_panel,
    put_panel,
    put_scores,
    score_step,
    unpack_keys,
    unpack_value,
    weigh_step,
)

ROWS = 96  # a multiple of every panel height
_NEVER = -1e30
_FAR = 1 << 60  # a window that hides nothing


def work_floats(padded: int) -> int:
    """Floats of scratch that a thread needs for rows of `padded` elements."""
    return 2 * ROWS * padded + 2 * 128 * padded + 128 * ROWS + 2 * ROWS


@jit
def _unpack(shape, segments, head, start, stop, kt, vs):
    """K transposed and V in float32 for the keys start..stop-1; zeros up to a whole tile."""
    blocks = of.padded(shape) // 32
    for first in range(start, stop, TILE):
        base = segments[first // SEGMENT] + head * of.head_bytes(shape)
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
            if first_key + tile * TILE > newest[panel]:
                continue
            sums = no_panel(shape)
            k, q = kt + 64 * tile * n, qp + 4 * high * panel * n
            for e in range(n):
                sums = score_step(shape, sums, q + 4 * high * e, k + 64 * e)
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
def _softmax(
    shape, rows, row0, group, start, window, first_key, n_keys, newest, softcap, scores, sums, m,
    total,
):  # fmt: skip
    """Online softmax of a block of keys for all rows: probabilities, and sums rescaled.

    Keys that no row of the panel sees are left out.
    """
    for r in range(rows):
        position = start + (row0 + r) // group
        hi = min(position + 1 - first_key, n_keys)
        lo = max(position - window + 1 - first_key, 0)
        s = scores + 4 * r * of.keys(shape)
        seen = min(newest[r // of.panel(shape)] + 1 - first_key, n_keys)
        top, part = _softmax_row(s, seen, lo, hi, softcap, m[r])
        if top > m[r]:
            keep = vexp(set_f32(m[r] - top))
            for c in range(of.vectors(shape)):
                o = 4 * (r * of.padded(shape) + 16 * c)
                store(sums, o, load_f32(sums, o) * keep)
            total[r] *= hmax(keep)
        m[r] = top
        total[r] += part


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
            for t in range(min(n_keys, newest[panel] + 1 - first_key)):
                tile = weigh_step(shape, tile, p + 4 * t, x + 64 * t)
            put_panel(shape, tile, place)


@jit
def _pack_rows(shape, q, head, group, row0, rows, scale, qp, line):
    """Query rows, scaled and rotated where K is, into panels; rows beyond the last are zeros."""
    high, n = of.panel(shape), of.padded(shape)
    panels = (rows + high - 1) // high
    for r in range(panels * high):
        for i in range(n):
            line[i] = 0.0
        if r < rows:
            for i in range(q.shape[2]):
                line[i] = q[(row0 + r) // group, head * group + (row0 + r) % group, i] * scale
        if of.rotates_k(shape):
            rotate_row(line.ctypes.data, n, of.rotation(shape))
        for i in range(n):
            qp[(r // high * n + i) * high + r % high] = line[i]
    return panels


@jit
def _finish_rows(shape, sums, total, head, group, row0, rows, out):
    """out = sums / total, rotated back where V is."""
    n = of.padded(shape)
    for r in range(rows):
        line = sums[r * n : (r + 1) * n]
        if of.rotates_v(shape):
            rotate_row(line.ctypes.data, n, of.rotation(shape))
        factor = 1.0 / total[r]
        for i in range(out.shape[2]):
            out[(row0 + r) // group, head * group + (row0 + r) % group, i] = line[i] * factor


@jit
def _rows_block(
    shape, q, segments, head, group, row0, rows, start, window, scale, softcap, work, newest, out
):
    """One block of query rows of one KV head against all the keys it may see."""
    n, keys = of.padded(shape), of.keys(shape)
    qp, sums = work[: ROWS * n], work[ROWS * n : 2 * ROWS * n]
    rest = work[2 * ROWS * n :]
    kt, vs = rest[: keys * n].ctypes.data, rest[keys * n :].ctypes.data
    rest = rest[2 * keys * n :]
    scores, m, total = rest.ctypes.data, rest[ROWS * keys :], rest[ROWS * keys + ROWS :]
    panels = _pack_rows(shape, q, head, group, row0, rows, scale, qp, sums)
    high = of.panel(shape)
    for panel in range(panels):
        newest[panel] = start + (row0 + min((panel + 1) * high, rows) - 1) // group
    for i in range(panels * high * n):
        sums[i] = 0.0
    for r in range(rows):
        m[r] = _NEVER
        total[r] = 0.0
    oldest = max(start + row0 // group - window + 1, 0)
    stop = newest[panels - 1] + 1
    for first in range(oldest // keys * keys, stop, keys):
        n_keys = min(stop - first, keys)
        _unpack(shape, segments, head, first, first + n_keys, kt, vs)
        panel_scores(shape, qp.ctypes.data, kt, panels, n_keys, newest, first, scores)
        _softmax(
            shape, rows, row0, group, start, window, first, n_keys, newest, softcap,
            scores, sums.ctypes.data, m, total,
        )  # fmt: skip
        panel_values(shape, scores, vs, panels, n_keys, newest, first, sums.ctypes.data)
    _finish_rows(shape, sums, total, head, group, row0, rows, out)


def make_chunk(k, v, blocks):
    """The kernel for KV types (k, v) and rows of 32 * blocks elements."""

    @jit(parallel=True)
    def chunk_kernel(q, segments, n_kv_heads, start, window, scale, softcap, out, work, newest):
        """q, out float32[T, H, E] at positions start..; work float32[threads, work_floats(padded)];
        newest int64[threads, ROWS]. About 4 T H E S / 2 multiply-adds for S = T fresh keys.
        """
        n_tokens, n_heads, _ = q.shape
        group = n_heads // n_kv_heads
        n_rows = n_tokens * group
        n_blocks = (n_rows + ROWS - 1) // ROWS
        items, parts = n_blocks * n_kv_heads, min(work.shape[0], n_blocks * n_kv_heads)
        for part in prange(parts):
            shape = of.shape_of(k, v, blocks, 1)
            # Later rows see more keys: deal the blocks out in turn.
            for item in range(part, items, parts):
                row0 = item // n_kv_heads * ROWS
                rows = min(ROWS, n_rows - row0)
                _rows_block(
                    shape, q, segments, item % n_kv_heads, group, row0, rows, start, window,
                    scale, softcap, work[part], newest[part], out,
                )  # fmt: skip

    return chunk_kernel
