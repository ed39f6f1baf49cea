"""Reading and rotating rows of KV tiles in Triton; the bytes are those of `ops.attention.layout`.

    one tensor for each layer, uint8 (segments, bytes of a segment):
    segment -> KV head -> tile -> [16 K rows][16 V rows][16 scale rows]

Device functions take rows as blocks of 32 elements: (blocks, tokens, 32), with the number of blocks
rounded up to a power of 2. Those that are not in memory read as zeros.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ...ops.attention.layout import KV_TYPES, TileLayout
from ..errors import CudaOpsError

F16, Q8_0, Q4_0 = (tl.constexpr(KV_TYPES[name].code) for name in ("f16", "q8_0", "q4_0"))


@dataclass(frozen=True)
class Tiles:
    """The tiles of a layer with so many KV heads: the constant by which kernels are specialised."""

    layout: TileLayout
    heads: int

    @property
    def k_type(self) -> int:
        return KV_TYPES[self.layout.k_type].code

    @property
    def v_type(self) -> int:
        return KV_TYPES[self.layout.v_type].code

    @property
    def blocks(self) -> int:
        """Blocks of a row, rounded up to a power of 2."""
        return int(triton.next_power_of_2(self.layout.blocks))

    @property
    def width(self) -> int:
        return 32 * self.blocks

    @property
    def rotation_steps(self) -> int:
        return self.layout.rotation.bit_length() - 1

    @property
    def rotation_factor(self) -> float:
        return 1.0 / math.sqrt(self.layout.rotation)

    @property
    def segment_bytes(self) -> int:
        return self.layout.segment_bytes(self.heads)


@triton.jit
def rows_at(kv, token, j, T: tl.constexpr):
    """Addresses (tokens,) of the K rows, V rows, K scales and V scales of tokens of KV head j."""
    t = token.to(tl.uint32)  # signed, each quotient would cost three instructions more
    tile = ((t >> 10) * T.heads + j) * 64 + ((t >> 4) & 63)
    row = (t & 15).to(tl.int32)
    at = kv + tile.to(tl.int64) * T.layout.tile_bytes
    scales = at + T.layout.scale_offset + row * T.layout.scale_row_bytes
    k, v = at + row * T.layout.k_row_bytes, at + T.layout.v_offset + row * T.layout.v_row_bytes
    return k, v, scales, scales + T.layout.v_scale


@triton.jit
def numbers(row, TYPE: tl.constexpr, T: tl.constexpr):
    """Rows without their scales (blocks, tokens, 32), f16; row: addresses (tokens,).

    All must be readable: callers repeat a token where they have fewer.
    """
    STORED: tl.constexpr = T.layout.blocks
    b, e = tl.arange(0, T.blocks)[:, None, None], tl.arange(0, 32)[None, None, :]
    if TYPE == F16:
        at = row.to(tl.pointer_type(tl.float16))[None, :, None] + (32 * b + e)
        x = tl.load(at, b < STORED, 0.0) if T.blocks > STORED else tl.load(at)
    elif TYPE == Q8_0:
        at = row.to(tl.pointer_type(tl.int8))[None, :, None] + (32 * b + e)
        x = (tl.load(at, b < STORED, 0) if T.blocks > STORED else tl.load(at)).to(tl.float16)
    else:
        at = row[None, :, None] + (16 * b + e % 16)
        both = (tl.load(at, b < STORED, 136) if T.blocks > STORED else tl.load(at)).to(tl.int32)
        x = (tl.where(e < 16, both & 15, both >> 4) - 8).to(tl.float16)
    return x


@triton.jit
def scales_of(at, T: tl.constexpr):
    """Scales (blocks, tokens) of rows, float32; at: addresses (tokens,)."""
    STORED: tl.constexpr = T.layout.blocks
    b = tl.arange(0, T.blocks)[:, None]
    places = at.to(tl.pointer_type(tl.float16))[None, :] + b
    x = tl.load(places, b < STORED, 0.0) if T.blocks > STORED else tl.load(places)
    return x.to(tl.float32)


@triton.jit
def rotated(x, T: tl.constexpr):
    """x (n, width) after the Hadamard rotation of every run of as many elements as the layout has.

    Each step takes the lowest bit of the index, adds and subtracts what differs in it, and puts it
    on top. After all steps the bits are where they were, and strides went 1, 2, 4, … as in
    `ops.attention.rotation`: the sums have the same bits.
    """
    RUN: tl.constexpr = T.layout.rotation
    STEPS: tl.constexpr = T.rotation_steps
    y = tl.reshape(x * T.rotation_factor, (x.shape[0] * x.shape[1] // RUN, RUN))
    for _ in tl.static_range(STEPS):
        a, b = tl.split(tl.reshape(y, (y.shape[0], RUN // 2, 2)))
        y = tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 2, 1)), (y.shape[0], RUN))
    return tl.reshape(y, (x.shape[0], x.shape[1]))


@triton.jit
def rows_of(blocks_first):
    """(blocks, n, 32) -> (n, 32 blocks)."""
    n: tl.constexpr = blocks_first.shape[1]
    return tl.reshape(tl.permute(blocks_first, (1, 0, 2)), (n, 32 * blocks_first.shape[0]))


@triton.jit
def blocks_of(rows):
    """(n, 32 blocks) -> (blocks, n, 32)."""
    apart = tl.reshape(rows, (rows.shape[0], rows.shape[1] // 32, 32))
    return tl.permute(apart, (1, 0, 2))


@triton.jit
def dequantised(row, scale, TYPE: tl.constexpr, T: tl.constexpr):
    """Rows (tokens, width), float32, their rotation undone; row, scale: addresses (tokens,)."""
    x = numbers(row, TYPE, T).to(tl.float32)
    if TYPE != F16:
        x *= scales_of(scale, T)[:, :, None]
    x = rows_of(x)
    if TYPE == Q4_0:
        x = rotated(x, T)
    return x


@triton.jit
def stored_keys(kv, token, j, T: tl.constexpr):
    """The keys of tokens (n,) of KV head j (n, width), their rotation undone."""
    k, _v, scale, _v_scale = rows_at(kv, token, j, T)
    return dequantised(k, scale, T.k_type, T)


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


def check_tiles(name: str, kv: torch.Tensor, tiles: Tiles) -> None:
    """Raise CudaOpsError unless kv is uint8 (segments, bytes of a segment) of these tiles."""
    n_bytes = tiles.segment_bytes
    if kv.dtype != torch.uint8 or kv.ndim != 2 or kv.shape[1] != n_bytes or kv.stride(1) != 1:
        raise CudaOpsError(
            f"{name}: segments are {kv.dtype} {tuple(kv.shape)}, expected uint8 (segments, "
            f"{n_bytes})"
        )
