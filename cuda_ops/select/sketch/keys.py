"""Sketches of stored keys on a GPU, and the mean of keys that is taken off them.

    x = key - centre,  y = R x,   bit i = (y_i > 0),   factor = |x|^2 / sum |y_i|  as f16

The bytes that `ops.select.sketch_keys` writes: sums are made in the order in which they are made
there, and nothing is fused that is not fused there.

    bits     uint8 (segments, J, 1024, bits / 8)
    factors  float16 (segments, J, 1024)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ....ops.attention.layout import SEGMENT, TILE, TileLayout
from ....ops.select import Rotation as HostRotation
from ....ops.select import sketch_bits
from ...attention.tiles import (
    check_floats,
    check_place,
    check_tiles,
    rotation_constants,
    stored_keys,
    tile_constants,
)
from ...errors import CudaOpsError
from ..dense import dense, put

KEYS = 16  # of one KV head that a program sketches, where there is more than one


@triton.jit
def sketch_kernel(
    kv, start, centre, rotation, bits, factors, work, n_tokens, room, J: tl.constexpr,
    TILE_BYTES: tl.constexpr, K_ROW: tl.constexpr, SCALES_AT: tl.constexpr,
    SCALES_ROW: tl.constexpr, K_KIND: tl.constexpr, STORED: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCKS: tl.constexpr, ROTATION: tl.constexpr, LOG: tl.constexpr, FACTOR: tl.constexpr,
    BITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS keys of KV head j; nothing at positions from `room` on."""
    block, j = tl.program_id(0), tl.program_id(1)
    i = block * ROWS + tl.arange(0, ROWS)
    token = tl.load(start) + tl.minimum(i, n_tokens - 1)
    listed = (i < n_tokens) & (token >= 0) & (token < room)
    token = tl.where(listed, token, 0)
    x = stored_keys(
        kv, token, j, J, TILE_BYTES, K_ROW, SCALES_AT, SCALES_ROW, K_KIND, STORED, BLOCKS,
        ROTATION, LOG, FACTOR,
    )  # fmt: skip
    e = tl.arange(0, 32 * BLOCKS)
    x -= tl.load(centre + j * HEAD_DIM + e, e < HEAD_DIM, 0.0)[None, :]
    line = work + ((block * J + j) * ROWS + tl.arange(0, ROWS)) * (2 * BITS)
    put(line, x, 32 * BLOCKS)
    y = dense(line, ROWS, rotation, BITS, BITS)
    put(line + BITS, y, BITS)
    norm, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for d in range(BITS):
        own = tl.load(line + d)
        norm += own * own
        total += tl.abs(tl.load(line + BITS + d))
    factor = tl.div_rn(norm, tl.where(total > 0.0, total, 1.0))
    factor = tl.where(total > 0.0, factor, 0.0)
    item = ((token // 1024).to(tl.int64) * J + j) * 1024 + token % 1024
    tl.store(factors + item, factor.to(tl.float16), listed)
    set_bits = (y > 0.0).to(tl.uint32)
    words = tl.reshape(set_bits, (ROWS, BITS // 32, 32)) << tl.arange(0, 32)[None, None, :]
    words = tl.sum(words, 2).to(tl.uint32).to(tl.int32, bitcast=True)
    at = item[:, None] * (BITS // 32) + tl.arange(0, BITS // 32)[None, :]
    tl.store(bits.to(tl.pointer_type(tl.int32)) + at, words, listed[:, None])


@triton.jit
def sums_kernel(
    kv, sums, first, last, J: tl.constexpr, TILE_BYTES: tl.constexpr, K_ROW: tl.constexpr,
    SCALES_AT: tl.constexpr, SCALES_ROW: tl.constexpr, K_KIND: tl.constexpr, STORED: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCKS: tl.constexpr, ROTATION: tl.constexpr, LOG: tl.constexpr,
    FACTOR: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """sums (segments, J, E): of the keys first .. last-1 of a segment, one after the other."""
    j, begin = tl.program_id(1), (first // 1024 + tl.program_id(0)) * 1024
    low, high = tl.maximum(first, begin), tl.minimum(last, begin + 1024)
    r = tl.arange(0, TILE)
    total = tl.zeros((32 * BLOCKS,), tl.float32)
    for tile in range(low // TILE * TILE, high, TILE):
        x = stored_keys(
            kv, tile + r, j, J, TILE_BYTES, K_ROW, SCALES_AT, SCALES_ROW, K_KIND, STORED, BLOCKS,
            ROTATION, LOG, FACTOR,
        )  # fmt: skip
        counts = (tile + r >= low) & (tile + r < high)
        for own in tl.static_range(TILE):  # one row and zeros: that sum is exact
            total += tl.sum(tl.where((counts & (r == own))[:, None], x, 0.0), 0)
    e = tl.arange(0, 32 * BLOCKS)
    tl.store(sums + (tl.program_id(0) * J + j) * HEAD_DIM + e, total, e < HEAD_DIM)


@dataclass(frozen=True)
class Rotation:
    """`ops.select.Rotation` in a GPU's memory: float32 (bits * bits + bits,)."""

    weights: torch.Tensor
    bits: int

    @staticmethod
    def of(rotation: HostRotation, device: torch.device) -> Rotation:
        """A copy of one in the host's memory."""
        return Rotation(torch.tensor(rotation.weights, device=device), rotation.bits)

    @staticmethod
    def random(head_dim: int, seed: int, device: torch.device) -> Rotation:
        """The one that `ops.select.Rotation.random` makes."""
        return Rotation.of(HostRotation.random(head_dim, seed), device)


def key_constants(layout: TileLayout, n_kv_heads: int) -> dict[str, Any]:
    """What kernels that read keys alone are specialised by."""
    known = tile_constants(layout, n_kv_heads)
    unused = ("V_ROW", "V_AT", "V_SCALE", "V_KIND")
    return {
        **{name: x for name, x in known.items() if name not in unused},
        **rotation_constants(layout),
    }


class KeyScratch:
    """Memory for sketching up to `max_rows` keys of each KV head at a time."""

    def __init__(
        self, n_kv_heads: int, layout: TileLayout, max_rows: int, device: torch.device
    ) -> None:
        self.n_kv_heads, self.layout, self.max_rows = n_kv_heads, layout, max_rows
        self.bits = sketch_bits(layout.head_dim)
        rows = 1 if max_rows == 1 else triton.cdiv(max_rows, KEYS) * KEYS
        # Of each key, and of its rotation; what a row has beyond head_dim stays zero.
        self.work = torch.zeros((rows * n_kv_heads, 2 * self.bits), device=device)
        self.constants = {**key_constants(layout, n_kv_heads), "BITS": self.bits}


def sketch_keys(
    rotation: Rotation,
    centre: torch.Tensor,
    kv: torch.Tensor,
    bits: torch.Tensor,
    factors: torch.Tensor,
    start: torch.Tensor,
    n_tokens: int,
    *,
    scratch: KeyScratch,
) -> None:
    """Write the sketches of k - centre of the stored keys start .. start+n_tokens-1.

    centre float32 (J, E); kv uint8 (segments, bytes of a segment); bits uint8 (segments, J, 1024,
    rotation.bits / 8), factors float16 (segments, J, 1024); start int32 (1,), on the GPU. One
    launch; what lies outside the segments is not written. The bytes of `ops.select.sketch_keys`.
    Raises CudaOpsError where shapes do not fit.
    """
    s, layout = scratch, scratch.layout
    check_tiles("sketches", kv, layout, s.n_kv_heads)
    check_rotation("sketches", rotation, s.bits)
    check_sketches("sketches", bits, factors, len(kv), s.n_kv_heads, s.bits)
    check_floats("sketches: centre", centre, (s.n_kv_heads, layout.head_dim))
    check_place("sketches: start", start, 1)
    if not 1 <= n_tokens <= s.max_rows:
        raise CudaOpsError(f"sketches: {n_tokens} keys, scratch was made for {s.max_rows}")
    rows = 1 if n_tokens == 1 else KEYS
    sketch_kernel[(triton.cdiv(n_tokens, rows), s.n_kv_heads)](
        kv, start, centre, rotation.weights, bits, factors, s.work, n_tokens, SEGMENT * len(kv),
        **s.constants, ROWS=rows, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def mean_keys(
    kv: torch.Tensor, layout: TileLayout, n_kv_heads: int, first: int, last: int
) -> torch.Tensor:
    """The mean of the stored keys of tokens first .. last-1 of each KV head, float32 (J, E).

    The bits of `ops.select.mean_keys`: segments are summed in float32, their sums in float64.
    Raises CudaOpsError where shapes do not fit, or no such tokens are stored.
    """
    check_tiles("mean of keys", kv, layout, n_kv_heads)
    if not 0 <= first < last <= SEGMENT * len(kv):
        raise CudaOpsError(
            f"mean of keys: tokens {first} to {last - 1}, expected some of the "
            f"{SEGMENT * len(kv)} stored"
        )
    n = (last - 1) // SEGMENT - first // SEGMENT + 1
    sums = torch.empty((n, n_kv_heads, layout.head_dim), device=kv.device)
    sums_kernel[(n, n_kv_heads)](
        kv, sums, first, last, **key_constants(layout, n_kv_heads), TILE=TILE, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    mean: torch.Tensor = sums.double().sum(0) / (last - first)
    return mean.float()


def check_rotation(name: str, rotation: Rotation, bits: int) -> None:
    """Raise CudaOpsError unless the rotation is one of so many dimensions."""
    shape = (bits * bits + bits,)
    if rotation.bits != bits:
        raise CudaOpsError(f"{name}: a rotation of {rotation.bits}, expected {bits} for these keys")
    check_floats(f"{name}: rotation", rotation.weights, shape)


def check_sketches(
    name: str, bits: torch.Tensor, factors: torch.Tensor, n_segments: int, heads: int, n_bits: int
) -> None:
    """Raise CudaOpsError unless these are the sketches of so many segments, contiguous."""
    wanted = (
        (torch.uint8, (n_segments, heads, SEGMENT, n_bits // 8)),
        (torch.float16, (n_segments, heads, SEGMENT)),
    )
    for part, x, (dtype, shape) in zip(("bits", "factors"), (bits, factors), wanted):
        if x.dtype != dtype or tuple(x.shape) != shape or not x.is_contiguous():
            raise CudaOpsError(
                f"{name}: {part} are {x.dtype} {tuple(x.shape)}, expected contiguous {dtype} "
                f"{shape}"
            )
