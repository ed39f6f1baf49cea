"""Kernels of attention of a chunk of a prompt: tiles to f16, and attention with cap or window."""

import triton
import triton.language as tl

from .tiles import dequantised, rotated, rows_of, tile_of
from .token_kernels import capped


@triton.jit
def unpack_kernel(
    kv, keys, values, first, n_tokens, room, J: tl.constexpr, TILE_BYTES: tl.constexpr,
    K_ROW: tl.constexpr, V_ROW: tl.constexpr, V_AT: tl.constexpr, SCALES_AT: tl.constexpr,
    SCALES_ROW: tl.constexpr, V_SCALE: tl.constexpr, K_KIND: tl.constexpr, V_KIND: tl.constexpr,
    STORED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCKS: tl.constexpr, ROTATION: tl.constexpr,
    LOG: tl.constexpr, FACTOR: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """keys, values f16 (J, room, head_dim): of tokens first .. first+n_tokens-1, not rotated."""
    i, j = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    at_tile, r = tile_of(first + tl.minimum(i, n_tokens - 1), j, J, TILE_BYTES)
    tile = kv + at_tile
    scale = tile + SCALES_AT + r * SCALES_ROW
    k = rows_of(dequantised(tile + r * K_ROW, scale, K_KIND, BLOCKS, STORED))
    v = tile + V_AT + r * V_ROW
    v = rows_of(dequantised(v, scale + V_SCALE, V_KIND, BLOCKS, STORED))
    if K_KIND == 2:
        k = rotated(k, ROTATION, LOG, FACTOR)
    if V_KIND == 2:
        v = rotated(v, ROTATION, LOG, FACTOR)
    e = tl.arange(0, 32 * BLOCKS)[None, :]
    at = (j.to(tl.int64) * room + i.to(tl.int64))[:, None] * HEAD_DIM + e
    here = (i < n_tokens)[:, None] & (e < HEAD_DIM)
    tl.store(keys + at, k.to(tl.float16), here)
    tl.store(values + at, v.to(tl.float16), here)


@triton.jit
def _rows(at, e, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    return tl.load(at) if HEAD_DIM == WIDTH else tl.load(at, (e < HEAD_DIM)[None, :], 0.0)


@triton.jit
def chunk_kernel(
    q, keys, values, out, first, start, n_rows, room, window, scale, softcap, H: tl.constexpr,
    G: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    STEP: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """out (T, H, E) of ROWS tokens of one query head, STEP keys at a time.

    keys, values f16 (J, room, E) begin with token `first`; row 0 of q is token `start`.
    """
    h = tl.program_id(1)
    row, e, c = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, STEP)
    t = tl.program_id(0) * ROWS + row
    own = tl.minimum(t, n_rows - 1)
    at = (own.to(tl.int64)[:, None] * H + h) * HEAD_DIM + e[None, :]
    x = (tl.load(q + at, (e < HEAD_DIM)[None, :], 0.0) * scale).to(tl.float16)
    position = start + own
    lowest = start + tl.minimum(tl.program_id(0) * ROWS, n_rows - 1) - window + 1
    begin = tl.maximum(lowest - first, 0) // STEP * STEP
    end = start + tl.minimum(tl.program_id(0) * ROWS + ROWS, n_rows) - first
    head = (h // G).to(tl.int64) * room * HEAD_DIM
    keys, values = keys + head, values + head  # of one head 32 bits count all numbers
    top = tl.full((ROWS,), -1e30, tl.float32)  # not -inf: a step may hide all keys from a row
    total, sums = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(begin, end, STEP):
        key = tl.minimum(i + c, end - 1)
        stored = key[:, None] * HEAD_DIM + e[None, :]
        k, v = _rows(keys + stored, e, HEAD_DIM, WIDTH), _rows(values + stored, e, HEAD_DIM, WIDTH)
        s = tl.dot(x, tl.trans(k))
        if CAPPED:
            s = capped(s, softcap)
        token = (first + i + c)[None, :]
        seen = (token <= position[:, None]) & (token > position[:, None] - window)
        s = tl.where(seen, s * 1.4426950408889634, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p, old = tl.exp2(s - now[:, None]), tl.exp2(top - now)
        total = total * old + tl.sum(p, 1)
        sums = tl.dot(p.to(tl.float16), v, sums * old[:, None])
        top = now
    at = (t.to(tl.int64)[:, None] * H + h) * HEAD_DIM + e[None, :]
    tl.store(out + at, sums / total[:, None], (t < n_rows)[:, None] & (e < HEAD_DIM)[None, :])
