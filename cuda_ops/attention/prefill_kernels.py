"""Kernels of attention of a chunk of a prompt: tiles to f16, and attention with cap or window."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .tiles import dequantised, rows_at
from .token_kernels import capped


class Unpacked(NamedTuple):
    """Keys and values of the tokens from `first` on, f16 (J, room, E), their rotation undone."""

    k: torch.Tensor
    v: torch.Tensor
    first: int
    room: int


class Rows(NamedTuple):
    """Query heads of n tokens from position `start` on, and their outputs, float32 (n, H, E)."""

    q: torch.Tensor
    out: torch.Tensor
    start: int
    n: int


@triton.jit
def unpack_kernel(kv, unpacked, n_tokens, T: tl.constexpr, TOKENS: tl.constexpr):
    """Unpack n_tokens tokens, TOKENS of one KV head at a time."""
    i, j = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    token = unpacked.first + tl.minimum(i, n_tokens - 1)
    k_row, v_row, k_scale, v_scale = rows_at(kv, token, j, T)
    k, v = dequantised(k_row, k_scale, T.k_type, T), dequantised(v_row, v_scale, T.v_type, T)
    e = tl.arange(0, T.width)[None, :]
    E: tl.constexpr = T.layout.head_dim
    at = (j.to(tl.int64) * unpacked.room + i.to(tl.int64))[:, None] * E + e
    here = (i < n_tokens)[:, None] & (e < E)
    tl.store(unpacked.k + at, k.to(tl.float16), here)
    tl.store(unpacked.v + at, v.to(tl.float16), here)


@triton.jit
def _rows(at, e, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr):
    return tl.load(at) if HEAD_DIM == WIDTH else tl.load(at, (e < HEAD_DIM)[None, :], 0.0)


@triton.jit
def chunk_kernel(
    rows, unpacked, window, scale, softcap, H: tl.constexpr, G: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    CAPPED: tl.constexpr,
):  # fmt: skip
    """Outputs of ROWS tokens of one query head, STEP keys at a time."""
    h, start, n_rows, first = tl.program_id(1), rows.start, rows.n, unpacked.first
    row, e, c = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, STEP)
    t = tl.program_id(0) * ROWS + row
    inside = tl.minimum(t, n_rows - 1)
    at = (inside.to(tl.int64)[:, None] * H + h) * HEAD_DIM + e[None, :]
    x = (tl.load(rows.q + at, (e < HEAD_DIM)[None, :], 0.0) * scale).to(tl.float16)
    position = start + inside
    lowest = start + tl.minimum(tl.program_id(0) * ROWS, n_rows - 1) - window + 1
    begin = tl.maximum(lowest - first, 0) // STEP * STEP
    end = start + tl.minimum(tl.program_id(0) * ROWS + ROWS, n_rows) - first
    head = (h // G).to(tl.int64) * unpacked.room * HEAD_DIM
    # Of one head 32 bits count all numbers.
    keys, values = unpacked.k + head, unpacked.v + head
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
    tl.store(rows.out + at, sums / total[:, None], (t < n_rows)[:, None] & (e < HEAD_DIM)[None, :])
