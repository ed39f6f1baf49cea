"""Products with thin matrices, see `thin`: A x in parts of 512 columns, and y += B (A x).

A sum adds column after column, for one token as for many, so that a token has the same bits in any
company. One token reads the numbers as they are stored; more have them as float32 first.
"""

from ...jit.cached import jit
from ...jit.launch.atomics import take
from ...jit.launch.define import Share, kernel
from ...jit.launch.views import address
from ...jit.simd import (
    fma,
    load_f32,
    load_i8x16,
    load_i16x16,
    load_one_f32,
    load_tail,
    prefetch_l1,
    set_f32,
    store,
    store_tail,
    to_f32,
    widen_i32,
)
from ..linear.arguments import Buffers, Output
from .arguments import Products
from .thin import CHUNK, HEAD, PAIR, ROWS, TILE_BYTES, Panels

_TOKENS = 64  # rows of the output that are written at once: a page of each stays in the TLB
_AHEAD = 2048  # bytes; lines are 64 bytes, half a pair is 40


@jit
def _first(pair):
    """Codes of the first column of a pair."""
    high, low = widen_i32(load_i16x16(pair, 0)), widen_i32(load_i8x16(pair, 64))
    return to_f32((high << 4) | (low & 15))


@jit
def _second(pair):
    """Codes of the second column of a pair."""
    high, low = widen_i32(load_i16x16(pair, 32)), widen_i32(load_i8x16(pair, 64))
    return to_f32((high << 4) | ((low >> 4) & 15))


@jit
def _token(pair, x, n_cols):
    """Codes of a panel by one token; x: address of float32[n_cols]."""
    total, whole = set_f32(0.0), n_cols // 2 * 2
    for k in range(0, whole, 2):
        prefetch_l1(pair, _AHEAD)
        prefetch_l1(pair, _AHEAD + PAIR // 2)
        total = fma(_first(pair), set_f32(load_one_f32(x, 4 * k)), total)
        total = fma(_second(pair), set_f32(load_one_f32(x, 4 * k + 4)), total)
        pair += PAIR
    if whole < n_cols:
        total = fma(_first(pair), set_f32(load_one_f32(x, 4 * whole)), total)
    return total


@jit
def _four(weights, run, x, stride, sums):
    """Four tokens by `run` columns; stride: bytes from token to token."""
    p, q = load_f32(sums, 0), load_f32(sums, 64)
    r, s = load_f32(sums, 128), load_f32(sums, 192)
    x1, x2, x3 = x + stride, x + 2 * stride, x + 3 * stride
    for k in range(run):
        w = load_f32(weights, 64 * k)
        p = fma(w, set_f32(load_one_f32(x, 4 * k)), p)
        q = fma(w, set_f32(load_one_f32(x1, 4 * k)), q)
        r = fma(w, set_f32(load_one_f32(x2, 4 * k)), r)
        s = fma(w, set_f32(load_one_f32(x3, 4 * k)), s)
    store(sums, 0, p)
    store(sums, 64, q)
    store(sums, 128, r)
    store(sums, 192, s)


@jit
def _one(weights, run, x, sums):
    """One token by `run` columns."""
    total = load_f32(sums, 0)
    for k in range(run):
        total = fma(load_f32(weights, 64 * k), set_f32(load_one_f32(x, 4 * k)), total)
    store(sums, 0, total)


@jit
def _tokens(pair, x, n_cols, n_tokens, stride, tile):
    """sums[t] = codes of a panel by token t. tile: address of float32[CHUNK][16], then the sums."""
    sums = tile + TILE_BYTES
    for t in range(n_tokens):
        store(sums, 64 * t, set_f32(0.0))
    for start in range(0, n_cols, CHUNK):
        run = min(CHUNK, n_cols - start)
        for k in range(0, run, 2):
            store(tile, 64 * k, _first(pair))
            store(tile, 64 * k + 64, _second(pair))
            pair += PAIR
        fours = n_tokens // 4 * 4
        for t in range(0, fours, 4):
            _four(tile, run, x + 4 * start + t * stride, stride, sums + 64 * t)
        for t in range(fours, n_tokens):
            _one(tile, run, x + 4 * start + t * stride, sums + 64 * t)


@kernel
def narrow_kernel(share: Share, products: Products, scratch: Buffers):
    """Each 512 columns of x by each panel of A -> products.parts."""
    n_tokens, n_panels, n_parts = products.parts.shape[:3]
    x, n_cols = address(products.x), products.x.shape[1]
    tile, row_bytes = scratch.data + share.part * scratch.n_bytes, 64 * n_panels * n_parts
    item = take(share.ticket)
    while item < n_panels * n_parts:
        scales, start = products.panels[item // n_parts], item % n_parts * CHUNK
        pairs, run = scales + HEAD + start // 2 * PAIR, min(CHUNK, n_cols - start)
        out = address(products.parts) + 64 * item
        if n_tokens == 1:
            store(out, 0, _token(pairs, x + 4 * start, run) * load_f32(scales, 0))
        else:
            _tokens(pairs, x + 4 * start, run, n_tokens, 4 * n_cols, tile)
            for t in range(n_tokens):
                product = load_f32(tile, TILE_BYTES + 64 * t) * load_f32(scales, 0)
                store(out, row_bytes * t, product)
        item = take(share.ticket)


@jit
def _add_parts(parts, out):
    """out float32[T][P][16] = the sums of the parts (T, P, parts, 16)."""
    n_tokens, n_panels, n_parts = parts.shape[:3]
    for i in range(n_tokens * n_panels):
        place = address(parts) + 64 * n_parts * i
        total = load_f32(place, 0)
        for part in range(1, n_parts):
            total = total + load_f32(place, 64 * part)
        store(out, 64 * i, total)


@jit
def _add(place, rows, total, scales):
    """Add the products of up to 16 rows to those at `place`."""
    if rows >= ROWS:
        store(place, 0, fma(total, load_f32(scales, 0), load_f32(place, 0)))
    else:
        old = load_tail(place, 0, rows)
        store_tail(place, 0, rows, fma(total, load_f32(scales, 0), old))


@jit
def _add_panel(b, panel, x, stride, out, tile):
    """Add the products of panel number `panel` by the tokens at x, `stride` bytes apart."""
    scales, rows = b.data + panel * b.panel_bytes, b.n_rows - ROWS * panel
    place = out.data + 64 * panel
    if out.n_tokens == 1:
        _add(place, rows, _token(scales + HEAD, x, b.n_cols), scales)
    else:
        _tokens(scales + HEAD, x, b.n_cols, out.n_tokens, stride, tile)
        for t in range(out.n_tokens):
            total = load_f32(tile, TILE_BYTES + 64 * t)
            _add(place + out.row_bytes * t, rows, total, scales)


@jit
def _add_panels(b, panels, x, stride, out, tile):
    """Add the products of a range of panels, which may be empty."""
    for start in range(0, out.n_tokens, _TOKENS):
        to = out.data + out.row_bytes * start
        some = Output(to, out.row_bytes, min(_TOKENS, out.n_tokens - start))
        for panel in range(panels[0], panels[1]):
            _add_panel(b, panel, x + stride * start, stride, some, tile)


@jit
def _panels(matrices, m):
    """B of product m."""
    return Panels(matrices[m, 0], matrices[m, 1], matrices[m, 2], matrices[m, 3])


@jit
def _n_panels(n_rows):
    return (n_rows + ROWS - 1) // ROWS


@kernel
def widen_kernel(share: Share, products: Products, scratch: Buffers):
    """Add each B by what `narrow_kernel` has written to its out."""
    n_tokens, stride, matrices = len(products.x), 64 * len(products.panels), products.matrices
    inputs = scratch.data + share.part * scratch.n_bytes
    tile = inputs + stride * n_tokens
    _add_parts(products.parts, inputs)
    n_panels = 0
    for m in range(len(matrices)):
        n_panels += _n_panels(_panels(matrices, m).n_rows)
    at_once = max(1, n_panels // (4 * share.parts))
    first = take(share.ticket) * at_once
    while first < n_panels:
        stop, begin = min(first + at_once, n_panels), 0  # of all panels; the first one of matrix m
        for m in range(len(matrices)):
            b, x = _panels(matrices, m), inputs + 64 * matrices[m, 4]
            out = Output(matrices[m, 5], 4 * b.n_rows, n_tokens)
            panels = max(first - begin, 0), min(stop - begin, _n_panels(b.n_rows))
            _add_panels(b, panels, x, stride, out, tile)
            begin += _n_panels(b.n_rows)
        first = take(share.ticket) * at_once
