"""Reading and rotating rows of KV tiles in Triton; the bytes are those of `ops.attention.layout`.

    one tensor for each layer, uint8 (segments, bytes of a segment):
    segment -> KV head -> tile -> [16 K rows][16 V rows][16 scale rows]

Device functions take rows as blocks of 32 elements: (blocks, tokens, 32), with the number of blocks
rounded up to a power of 2, `BLOCKS`, of which `STORED` are in memory. The others read as zeros.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl

from ...ops.attention.layout import KV_TYPES, TileLayout
from ..errors import CudaOpsError


@triton.jit
def numbers(row, KIND: tl.constexpr, BLOCKS: tl.constexpr, STORED: tl.constexpr):
    """Rows without their scales (blocks, tokens, 32), f16; row: addresses (tokens,).

    All must be readable: callers repeat a token where they have fewer.
    """
    b, e = tl.arange(0, BLOCKS)[:, None, None], tl.arange(0, 32)[None, None, :]
    if KIND == 0:
        at = row.to(tl.pointer_type(tl.float16))[None, :, None] + (32 * b + e)
        x = tl.load(at, b < STORED, 0.0) if STORED < BLOCKS else tl.load(at)
    elif KIND == 1:
        at = row.to(tl.pointer_type(tl.int8))[None, :, None] + (32 * b + e)
        x = (tl.load(at, b < STORED, 0) if STORED < BLOCKS else tl.load(at)).to(tl.float16)
    else:
        at = row[None, :, None] + (16 * b + e % 16)
        both = (tl.load(at, b < STORED, 136) if STORED < BLOCKS else tl.load(at)).to(tl.int32)
        x = (tl.where(e < 16, both & 15, both >> 4) - 8).to(tl.float16)
    return x


@triton.jit
def scales_of(at, BLOCKS: tl.constexpr, STORED: tl.constexpr):
    """Scales (blocks, tokens) of rows, float32; at: addresses (tokens,)."""
    b = tl.arange(0, BLOCKS)[:, None]
    places = at.to(tl.pointer_type(tl.float16))[None, :] + b
    x = tl.load(places, b < STORED, 0.0) if STORED < BLOCKS else tl.load(places)
    return x.to(tl.float32)


@triton.jit
def tile_of(token, j, J: tl.constexpr, TILE_BYTES: tl.constexpr):
    """(byte of the tile that holds a token of KV head j, int64; the token's row in the tile)."""
    t = token.to(tl.uint32)  # signed, each quotient would cost three instructions more
    tile = ((t >> 10) * J + j) * 64 + ((t >> 4) & 63)
    return tile.to(tl.int64) * TILE_BYTES, (t & 15).to(tl.int32)


@triton.jit
def dequantised(row, scale, KIND: tl.constexpr, BLOCKS: tl.constexpr, STORED: tl.constexpr):
    """Rows as they are stored (blocks, tokens, 32), float32; row, scale: addresses (tokens,)."""
    x = numbers(row, KIND, BLOCKS, STORED).to(tl.float32)
    if KIND > 0:
        x *= scales_of(scale, BLOCKS, STORED)[:, :, None]
    return x


@triton.jit
def rotated(x, ROTATION: tl.constexpr, LOG: tl.constexpr, FACTOR: tl.constexpr):
    """x (n, width) after the Hadamard rotation of every run of ROTATION = 2^LOG elements.

    Each step takes the lowest bit of the index, adds and subtracts what differs in it, and puts it
    on top. After LOG steps all bits are where they were, and strides went 1, 2, 4, … as in
    `ops.attention.rotation`: the sums have the same bits.
    """
    y = tl.reshape(x * FACTOR, (x.shape[0] * x.shape[1] // ROTATION, ROTATION))
    for _ in tl.static_range(LOG):
        a, b = tl.split(tl.reshape(y, (y.shape[0], ROTATION // 2, 2)))
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (y.shape[0], ROTATION))
    return tl.reshape(y, (x.shape[0], x.shape[1]))


@triton.jit
def rows_of(blocks_first):
    """(blocks, n, 32) -> (n, 32 blocks)."""
    n: tl.constexpr = blocks_first.shape[1]
    return tl.reshape(tl.permute(blocks_first, (1, 0, 2)), (n, 32 * blocks_first.shape[0]))


@triton.jit
def stored_keys(
    kv, token, j, J: tl.constexpr, TILE_BYTES: tl.constexpr, K_ROW: tl.constexpr,
    SCALES_AT: tl.constexpr, SCALES_ROW: tl.constexpr, K_KIND: tl.constexpr, STORED: tl.constexpr,
    BLOCKS: tl.constexpr, ROTATION: tl.constexpr, LOG: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """The keys of tokens (n,) of KV head j (n, 32 BLOCKS), their rotation undone."""
    at_tile, r = tile_of(token, j, J, TILE_BYTES)
    tile = kv + at_tile
    scale = tile + SCALES_AT + r * SCALES_ROW
    x = rows_of(dequantised(tile + r * K_ROW, scale, K_KIND, BLOCKS, STORED))
    if K_KIND == 2:
        x = rotated(x, ROTATION, LOG, FACTOR)
    return x


@triton.jit
def blocks_of(rows):
    """(n, 32 blocks) -> (blocks, n, 32)."""
    apart = tl.reshape(rows, (rows.shape[0], rows.shape[1] // 32, 32))
    return tl.permute(apart, (1, 0, 2))


SERVED = ("f16", "q8_0", "q4_0")
MOST_HEAD_DIM = 256


def check_served(layout: TileLayout) -> None:
    """Raise CudaOpsError unless the kernels serve the types and head_dim of a layout."""
    for side, name in (("K", layout.k_type), ("V", layout.v_type)):
        if name not in SERVED:
            raise CudaOpsError(f"{side} of type {name} has no GPU kernel, {', '.join(SERVED)} have")
    if layout.head_dim > MOST_HEAD_DIM:
        raise CudaOpsError(
            f"head_dim {layout.head_dim} has no GPU kernel, those up to {MOST_HEAD_DIM} have"
        )


def tile_constants(layout: TileLayout, n_kv_heads: int) -> dict[str, Any]:
    """What places a byte: the constants by which kernels that read tiles are specialised."""
    return {
        "J": n_kv_heads, "TILE_BYTES": layout.tile_bytes, "K_ROW": layout.k_row_bytes,
        "V_ROW": layout.v_row_bytes, "V_AT": layout.v_offset, "SCALES_AT": layout.scale_offset,
        "SCALES_ROW": layout.scale_row_bytes, "V_SCALE": layout.v_scale,
        "K_KIND": KV_TYPES[layout.k_type].code, "V_KIND": KV_TYPES[layout.v_type].code,
        "STORED": layout.blocks, "HEAD_DIM": layout.head_dim,
        "BLOCKS": triton.next_power_of_2(layout.blocks),
    }  # fmt: skip


def rotation_constants(layout: TileLayout) -> dict[str, Any]:
    """The Hadamard rotation of a row."""
    n = layout.rotation
    return {"ROTATION": n, "LOG": n.bit_length() - 1, "FACTOR": 1.0 / math.sqrt(n)}


def check_tiles(name: str, kv: torch.Tensor, layout: TileLayout, n_kv_heads: int) -> None:
    """Raise CudaOpsError unless kv is uint8 (segments, bytes of a segment) of this layout."""
    n_bytes = layout.segment_bytes(n_kv_heads)
    if kv.dtype != torch.uint8 or kv.ndim != 2 or kv.shape[1] != n_bytes or kv.stride(1) != 1:
        raise CudaOpsError(
            f"{name}: segments are {kv.dtype} {tuple(kv.shape)}, expected uint8 (segments, "
            f"{n_bytes})"
        )


def check_place(name: str, place: torch.Tensor, n: int) -> None:
    """Raise CudaOpsError unless place is int32 (n,): numbers that kernels read on the GPU."""
    if place.dtype != torch.int32 or place.shape != (n,):
        raise CudaOpsError(
            f"{name} is {place.dtype} {tuple(place.shape)}, expected int32 ({n},) on the GPU"
        )


def check_floats(name: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise CudaOpsError unless x is contiguous float32 of this shape."""
    if x.dtype != torch.float32 or tuple(x.shape) != shape or not x.is_contiguous():
        raise CudaOpsError(
            f"{name} is {x.dtype} {tuple(x.shape)}, expected contiguous float32 {shape}"
        )
