"""The kernel of attention in texts: blocks of 96 tokens of one head, times blocks of 128 keys.

Queries are scaled and copied, keys transposed and values copied, into memory that the caches hold.
A running maximum rescales the sums (flash attention); most texts have one block of keys, where
nothing is rescaled. Threads take a head of a block each. How the work is cut depends on a text's
own length alone: so do its results.
"""

from typing import NamedTuple

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ....jit.simd import (
    hmax,
    hsum,
    load_f32,
    load_one_f32,
    load_tail,
    mask,
    set_f32,
    store,
    store_tail,
    vexp,
    vmax,
)
from ..work import HIDDEN
from .tiles import HEIGHT, VECTORS, add_line, get_tile, no_tile, put_tile, transpose
from .work import KEYS, ROWS, SCORES, STRIP, TextRows


class _Memory(NamedTuple):
    """Addresses in a thread's memory, see `work.work_floats`. queries, sums float32[row][padded];
    keys, values float32[strip][line][32]; scores float32[row][SCORES]."""

    queries: int
    sums: int
    keys: int
    values: int
    scores: int
    maxima: int
    totals: int
    row_bytes: int
    """Of queries and of sums."""


class _Rows(NamedTuple):
    """Rows of a head: the address of the first, bytes from row to row, rows, floats of each."""

    data: int
    row_bytes: int
    n: int
    width: int


@jit
def _memory(work, width):
    """A thread's memory for heads of so many floats."""
    padded = (width + STRIP - 1) // STRIP * STRIP
    sums = work + 4 * ROWS * padded
    keys = sums + 4 * ROWS * padded
    values = keys + 4 * KEYS * padded
    scores = values + 4 * KEYS * padded
    maxima = scores + 4 * ROWS * SCORES
    return _Memory(work, sums, keys, values, scores, maxima, maxima + 4 * ROWS, 4 * padded)


@jit
def _rows_of(x, head, first, n):
    """Rows first .. first+n-1 of a head of x float32 (N, heads, E)."""
    heads, width = x.shape[1], x.shape[2]
    return _Rows(address(x) + 4 * width * (first * heads + head), 4 * width * heads, n, width)


@jit
def _copy_row(row, width, factor, to, step):
    """to = factor * row, its vectors `step` bytes apart in pairs: filled up with zeros."""
    f, whole = set_f32(factor), width // 16 * 16
    for i in range(0, whole, 16):
        store(to + i // STRIP * step, 4 * (i % STRIP), load_f32(row, 4 * i) * f)
    if whole < width:
        x = load_tail(row, 4 * whole, width - whole) * f
        store(to + whole // STRIP * step, 4 * (whole % STRIP), x)


@jit
def _begin(q, scale, at):
    """Copy the scaled queries; rows that fill up the last tile are zeros."""
    for r in range(q.n):
        _copy_row(q.data + r * q.row_bytes, q.width, scale, at.queries + r * at.row_bytes, 128)
        store(at.maxima, 4 * r, np.float32(HIDDEN))
        store(at.totals, 4 * r, np.float32(0))
    for r in range(q.n, (q.n + HEIGHT - 1) // HEIGHT * HEIGHT):
        for i in range(0, at.row_bytes, 64):
            store(at.queries + r * at.row_bytes, i, set_f32(0.0))


@jit
def _unpack(k, v, at):
    """Keys transposed into strips of 32 keys, values copied into strips of 32 elements."""
    eights = k.width // 8 * 8
    for i in range(0, k.n, 16):
        strip = at.keys + 4 * (i // STRIP * STRIP * k.width + i % STRIP)
        rows, n = k.data + i * k.row_bytes, k.n - i
        for e in range(0, eights, 8):
            transpose(rows + 4 * e, k.row_bytes, n, strip + 4 * STRIP * e)
        for e in range(eights, k.width):
            for r in range(16):
                number = load_one_f32(rows + min(r, n - 1) * k.row_bytes, 4 * e)
                store(strip, 4 * (STRIP * e + r), number)
    for i in range(v.n):
        to = at.values + 4 * STRIP * i
        _copy_row(v.data + i * v.row_bytes, v.width, 1.0, to, 4 * STRIP * v.n)


def _make_multiply(vectors):
    @jit
    def multiply(rows, row_bytes, strip, n, out, out_bytes, adds):
        """HEIGHT rows of n numbers by n lines of a strip, added to what `out` holds or not."""
        tile = get_tile(vectors, out, out_bytes) if adds else no_tile(vectors)
        for i in range(n):
            tile = add_line(tile, rows + 4 * i, row_bytes, strip + 4 * STRIP * i)
        put_tile(tile, out, out_bytes)

    return multiply


_wide, _narrow = _make_multiply(VECTORS), _make_multiply(1)


@jit
def _multiply(n_rows, rows, row_bytes, strips, lines, columns, out, out_bytes, adds):
    """out[row][column] = rows by strips of so many lines, in all for so many columns."""
    for c in range(0, columns, 16 * VECTORS):
        strip = strips + 4 * (c // STRIP * STRIP * lines + c % STRIP)
        for r in range(0, n_rows, HEIGHT):
            row, place = rows + r * row_bytes, out + r * out_bytes + 4 * c
            if c + 16 < columns:
                _wide(row, row_bytes, strip, lines, place, out_bytes, adds)
            else:
                _narrow(row, row_bytes, strip, lines, place, out_bytes, adds)


@jit
def _softmax_row(s, first, stop, old):
    """exp(score - maximum) of keys first .. stop-1 in place, 0 for others in their vectors.
    Returns (the larger of `old` and their maximum, sum)."""
    m, total = set_f32(old), set_f32(0.0)
    for i in range(first // 16 * 16, stop, 16):
        x = load_f32(s, 4 * i)
        if i < first or i + 16 > stop:
            x = mask(x, first - i, stop - i, HIDDEN)
            store(s, 4 * i, x)
        m = vmax(m, x)
    top = hmax(m)
    m = set_f32(top)
    for i in range(first // 16 * 16, stop, 16):
        p = vexp(load_f32(s, 4 * i) - m)
        if i < first or i + 16 > stop:
            p = mask(p, first - i, stop - i, 0.0)
        store(s, 4 * i, p)
        total = total + p
    return top, hsum(total)


@jit
def _softmax(q, n_keys, shift, half, at):
    """Turn scores into exponentials, and rescale the sums of earlier keys. Row r is at position
    r + shift among the keys, and reads those up to `half` away."""
    for r in range(q.n):
        s, m, total = at.scores + 4 * SCORES * r, at.maxima + 4 * r, at.totals + 4 * r
        first, stop = max(r + shift - half, 0), max(min(r + shift + half + 1, n_keys), 0)
        old = load_one_f32(m, 0)
        top, part = _softmax_row(s, first, stop, old)
        for i in range(0, min(first // 16 * 16, n_keys), 16):
            store(s, 4 * i, set_f32(0.0))
        for i in range((stop + 15) // 16 * 16, n_keys, 16):
            store(s, 4 * i, set_f32(0.0))
        whole = load_one_f32(total, 0)
        if whole > 0 and top > old:
            shrink, line = vexp(set_f32(old - top)), at.sums + r * at.row_bytes
            for i in range(0, at.row_bytes, 64):
                store(line, i, load_f32(line, i) * shrink)
            whole *= hmax(shrink)
        store(m, 0, top)
        store(total, 0, whole + part)


@jit
def _finish(out, at):
    """out = sums / totals."""
    whole = out.width // 16 * 16
    for r in range(out.n):
        line, row = at.sums + r * at.row_bytes, out.data + r * out.row_bytes
        factor = set_f32(1.0 / load_one_f32(at.totals, 4 * r))
        for i in range(0, whole, 16):
            store(row, 4 * i, load_f32(line, 4 * i) * factor)
        if whole < out.width:
            store_tail(row, 4 * whole, out.width - whole, load_f32(line, 4 * whole) * factor)


@jit
def _attend(rows, block, head, window, scale, at):
    """The outputs of a block's tokens for one query head."""
    text, length, start, stop = block[0], block[1], block[2], block[3]
    kv_head = head // (rows.q.shape[1] // rows.k.shape[1])
    q = _rows_of(rows.q, head, text + start, stop - start)
    half = window // 2 if window > 0 else length
    begin, end = max(start - half, 0), min(stop + half, length)
    _begin(q, scale, at)
    for first in range(begin, end, KEYS):
        n = min(KEYS, end - first)
        k = _rows_of(rows.k, kv_head, text + first, n)
        v = _rows_of(rows.v, kv_head, text + first, n)
        _unpack(k, v, at)
        _multiply(q.n, at.queries, at.row_bytes, at.keys, q.width, n, at.scores, 4 * SCORES, False)
        _softmax(q, n, start - first, half, at)
        _multiply(
            q.n, at.scores, 4 * SCORES, at.values, n, q.width, at.sums, at.row_bytes, first > begin
        )
    _finish(_rows_of(rows.out, head, text + start, stop - start), at)


@kernel
def text_kernel(share: Share, rows: TextRows, window: int, scale: float):
    """About 4 E multiply-adds for each query head and pair of tokens.

    The last texts go first: where they are sorted, these are the longest, and no thread ends long
    after the others.
    """
    n_heads = rows.q.shape[1]
    items = rows.blocks.shape[0] * n_heads
    at = _memory(address(rows.works[share.part]), rows.q.shape[2])
    item = items - 1 - take(share.ticket)
    while item >= 0:
        _attend(rows, rows.blocks[item // n_heads], item % n_heads, window, scale, at)
        item = items - 1 - take(share.ticket)
