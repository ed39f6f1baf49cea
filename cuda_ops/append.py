"""append_kv: round or quantise new keys and values and write them into their tiles.

The bytes are those of `ops.attention.append`: divisions are rounded correctly (`div_rn`), nothing
is fused that is not fused there, and what is fused there is computed in float64, which holds the
product exactly.
"""

import torch
import triton
import triton.language as tl

from ..ops.attention.layout import TileLayout
from .attention.tiles import (
    F16,
    Q8_0,
    Tiles,
    blocks_of,
    check_tiles,
    rotated,
    rows_at,
)
from .errors import CudaOpsError
from .memory import check_floats, check_place

TOKENS = 16  # of one KV head that a program stores; 1 where there is only one


@triton.jit
def _inverse(d):
    """1 / d, and 0 for d = 0: a block of zeros stays zeros."""
    return tl.where(d == 0.0, 0.0, tl.div_rn(tl.full(d.shape, 1.0, tl.float32), d))


@triton.jit
def _put_q8_0(x, row, scale, listed, STORED: tl.constexpr):
    """d = max|x| / 127, q = round(x / d), halves away from zero; x (blocks, tokens, 32)."""
    b, e = tl.arange(0, x.shape[0])[:, None, None], tl.arange(0, 32)[None, None, :]
    d = tl.div_rn(tl.max(tl.abs(x), 2), tl.full((x.shape[0], x.shape[1]), 127.0, tl.float32))
    y = x * _inverse(d)[:, :, None]
    q = y.to(tl.int32)
    rest = y - q.to(tl.float32)
    q += (rest >= 0.5).to(tl.int32) - (rest <= -0.5).to(tl.int32)
    at = row.to(tl.pointer_type(tl.int8))[None, :, None] + (32 * b + e)
    tl.store(at, q.to(tl.int8), listed[None, :, None] & (b < STORED))
    _put_scales(d, scale, listed, STORED)


@triton.jit
def _put_q4_0(x, row, scale, listed, STORED: tl.constexpr):
    """d = (the first of the greatest magnitude) / -8, q = min(15, trunc(x / d + 8.5))."""
    e = tl.arange(0, 32)[None, None, :]
    size = tl.abs(x)
    top = tl.max(size, 2)
    negative = (x.to(tl.int32, bitcast=True) >> 31) & 1
    first = tl.min(tl.where(size == top[:, :, None], 2 * e + negative, 99), 2)
    extreme = tl.where(first % 2 == 1, top * -1.0, top)  # Triton negates 0.0 to 0.0
    d = tl.div_rn(extreme, tl.full(extreme.shape, -8.0, tl.float32))
    n = x.to(tl.float64) * _inverse(d).to(tl.float64)[:, :, None] + 8.5
    n = tl.minimum(n.to(tl.float32).to(tl.int32), 15)
    low, high = tl.split(tl.permute(tl.reshape(n, (x.shape[0], x.shape[1], 2, 16)), (0, 1, 3, 2)))
    b, i = tl.arange(0, x.shape[0])[:, None, None], tl.arange(0, 16)[None, None, :]
    at = row[None, :, None] + (16 * b + i)
    tl.store(at, (low | (high << 4)).to(tl.uint8), listed[None, :, None] & (b < STORED))
    _put_scales(d, scale, listed, STORED)


@triton.jit
def _put_scales(d, scale, listed, STORED: tl.constexpr):
    b = tl.arange(0, d.shape[0])[:, None]
    at = scale.to(tl.pointer_type(tl.float16))[None, :] + b
    tl.store(at, d.to(tl.float16), listed[None, :] & (b < STORED))


@triton.jit
def _put(x, row, scale, listed, TYPE: tl.constexpr, T: tl.constexpr):
    """Store rows x (tokens, width) at addresses (tokens,)."""
    STORED: tl.constexpr = T.layout.blocks
    if TYPE == F16:
        b = tl.arange(0, T.blocks)[:, None, None]
        at = row.to(tl.pointer_type(tl.float16))[None, :, None]
        at += 32 * b + tl.arange(0, 32)[None, None, :]
        here = listed[None, :, None] & (b < STORED)
        tl.store(at, blocks_of(x).to(tl.float16), here)
    elif TYPE == Q8_0:
        _put_q8_0(blocks_of(x), row, scale, listed, STORED)
    else:
        _put_q4_0(blocks_of(rotated(x, T)), row, scale, listed, STORED)


@triton.jit
def append_kernel(k, v, kv, start, n_tokens, room, T: tl.constexpr, TOKENS: tl.constexpr):
    """Store TOKENS keys and values of one KV head; nothing at positions from `room` on."""
    t, j = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    e = tl.arange(0, T.width)
    token = tl.load(start) + t
    listed = (t < n_tokens) & (token >= 0) & (token < room)
    at = (t * T.heads + j).to(tl.int64)[:, None] * T.layout.head_dim + e[None, :]
    here = listed[:, None] & (e < T.layout.head_dim)[None, :]
    key, value = tl.load(k + at, here, 0.0), tl.load(v + at, here, 0.0)
    k_row, v_row, k_scale, v_scale = rows_at(kv, token, j, T)
    _put(key, k_row, k_scale, listed, T.k_type, T)
    _put(value, v_row, v_scale, listed, T.v_type, T)


def warps_of(layout: TileLayout, together: int) -> int:
    """Warps of a program that stores so many tokens: no GPU spills, and 384 threads fit or more."""
    if together == 1:
        return 1
    return 16 if layout.padded > 128 else 4


def append_kv(
    k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, layout: TileLayout, start: torch.Tensor
) -> None:
    """Store keys and values of T tokens at positions start .. start+T-1.

    k, v float32 (T, J, E); kv uint8 (segments, bytes of a segment); start int32 (1,), on the GPU.
    The bytes that `ops.attention.append_kv` writes. What lies outside kv is not written: the caller
    reserves. Raises CudaOpsError where shapes do not fit.
    """
    if k.ndim != 3 or k.shape[2] != layout.head_dim:
        raise CudaOpsError(
            f"append_kv: k is {tuple(k.shape)}, expected (tokens, KV heads, {layout.head_dim})"
        )
    n_tokens, n_kv_heads, _ = k.shape
    tiles = Tiles(layout, n_kv_heads)
    check_floats("append_kv: k", k, tuple(k.shape))
    check_floats("append_kv: v", v, tuple(k.shape))
    check_tiles("append_kv", kv, tiles)
    check_place("append_kv: start", start, 1)
    together = 1 if n_tokens == 1 else TOKENS
    append_kernel[(triton.cdiv(n_tokens, together), n_kv_heads)](
        k, v, kv, start, n_tokens, 1024 * len(kv), T=tiles, TOKENS=together,
        num_warps=warps_of(layout, together), enable_fp_fusion=False,
    )  # fmt: skip
