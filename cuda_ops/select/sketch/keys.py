"""Sketches of stored keys on a GPU, and the mean and variance of keys.

    x = (key - centre) scales,  y = R x,   bit i = (y_i > 0),   factor = |x|^2 / sum |y_i|  as f16

The bytes that `ops.select.sketch_keys` writes: sums are made in the order in which they are made
there, and nothing is fused that is not fused there.

    bits     uint8 (segments, J, 1024, bits / 8)
    factors  float16 (segments, J, 1024)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl

from ....ops.attention.layout import SEGMENT, TILE, TileLayout
from ....ops.select import Frame, SketchedKeys, moments_of, sketch_bits
from ....ops.select import Rotation as HostRotation
from ...attention.tiles import Tiles, check_tiles, stored_keys
from ...errors import CudaOpsError
from ...memory import check_floats, in_memory, telling
from ..dense import dense, put

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEYS = 16  # of one KV head that a program sketches, where there is more than one
ROWS = 8192
"""Keys that are sketched in one launch, of all KV heads."""


class Sketches(NamedTuple):
    """bits uint8 (segments, J, 1024, bits / 8) and factors float16 (segments, J, 1024)."""

    bits: torch.Tensor
    factors: torch.Tensor


@triton.jit
def item_of(position, j, J):
    """The number of the item of a position in a column of J KV heads."""
    return ((position // 1024).to(tl.int64) * J + j) * 1024 + position % 1024


@triton.jit
def sketch_kernel(
    kv, start, frame, rotation, sketches, work, n_tokens, room, T: tl.constexpr,
    BITS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS keys of KV head j; nothing at positions from `room` on."""
    block, j = tl.program_id(0), tl.program_id(1)
    i = block * ROWS + tl.arange(0, ROWS)
    token = tl.load(start) + tl.minimum(i, n_tokens - 1)
    listed = (i < n_tokens) & (token >= 0) & (token < room)
    token = tl.where(listed, token, 0)
    x = stored_keys(kv, token, j, T)
    e = j * BITS + tl.arange(0, T.width)
    x = (x - tl.load(frame.centre + e)[None, :]) * tl.load(frame.scales + e)[None, :]
    line = work + ((block * T.heads + j) * ROWS + tl.arange(0, ROWS)) * (2 * BITS)
    put(line, x, T.width)
    y = dense(line, ROWS, rotation, BITS, BITS)
    put(line + BITS, y, BITS)
    norm, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for d in range(BITS):
        value = tl.load(line + d)
        norm += value * value
        total += tl.abs(tl.load(line + BITS + d))
    factor = tl.div_rn(norm, tl.where(total > 0.0, total, 1.0))
    factor = tl.where(total > 0.0, factor, 0.0)
    item = item_of(token, j, T.heads)
    tl.store(sketches.factors + item, factor.to(tl.float16), listed)
    set_bits = (y > 0.0).to(tl.uint32)
    words = tl.reshape(set_bits, (ROWS, BITS // 32, 32)) << tl.arange(0, 32)[None, None, :]
    words = tl.sum(words, 2).to(tl.uint32).to(tl.int32, bitcast=True)
    at = item[:, None] * (BITS // 32) + tl.arange(0, BITS // 32)[None, :]
    tl.store(sketches.bits.to(tl.pointer_type(tl.int32)) + at, words, listed[:, None])


@triton.jit
def sums_kernel(kv, sums, squares, first, last, T: tl.constexpr, TILE: tl.constexpr):
    """sums, squares (segments, J, E): of the keys first .. last-1 of a segment, one after the
    other."""
    j, begin = tl.program_id(1), (first // 1024 + tl.program_id(0)) * 1024
    low, high = tl.maximum(first, begin), tl.minimum(last, begin + 1024)
    r = tl.arange(0, TILE)
    WIDTH: tl.constexpr = T.width
    total, square = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for tile in range(low // TILE * TILE, high, TILE):
        x = stored_keys(kv, tile + r, j, T)
        counts = (tile + r >= low) & (tile + r < high)
        for row in tl.static_range(TILE):  # one row and zeros: that sum is exact
            key = tl.sum(tl.where((counts & (r == row))[:, None], x, 0.0), 0)
            total += key
            square = tl.fma(key, key, square)
    e, E = tl.arange(0, T.width), T.layout.head_dim
    at = (tl.program_id(0) * T.heads + j) * E + e
    tl.store(sums + at, total, e < E)
    tl.store(squares + at, square, e < E)


@dataclass(frozen=True)
class Rotation:
    """`ops.select.Rotation` in a GPU's memory: weights float32 (bits * bits + bits,).

    work: memory for the keys of a launch. Of each row, a key and its rotation; what a row has
    beyond head_dim stays zero.
    """

    weights: torch.Tensor
    bits: int
    work: torch.Tensor

    @staticmethod
    def random(head_dim: int, seed: int, device: torch.device) -> Rotation:
        """The one that `ops.select.Rotation.random` makes."""
        host = HostRotation.random(head_dim, seed)
        work = torch.zeros((ROWS, 2 * host.bits), device=device)
        return Rotation(torch.tensor(host.weights, device=device), host.bits, work)


@dataclass(frozen=True)
class Frames:
    """Makes the `ops.select.Frame`s of a GPU's memory, by the names of theirs."""

    device: torch.device

    def of(self, centre: NDArray[np.float32], scales: NDArray[np.float32]) -> Frame:
        return self._put(Frame.of(centre, scales))

    def plain(self, n_kv_heads: int, head_dim: int) -> Frame:
        return self._put(Frame.plain(n_kv_heads, head_dim))

    def _put(self, frame: Frame) -> Frame:
        rows: Any = (torch.tensor(row, device=self.device) for row in frame)
        return Frame(*rows)


def sketch_keys(keys: SketchedKeys, layout: TileLayout, first: int, stop: int) -> None:
    """Write the sketches of the stored keys first .. stop-1 into their two columns.

    keys: tensors of one device, segments and columns uint8 (segments, bytes of a segment). What
    lies outside the segments is not written. The bytes of `ops.select.sketch_keys`. Raises
    CudaOpsError where shapes do not fit.
    """
    stored: Any = keys  # tensors and a `Rotation` of this device, not addresses
    kv, bits, factors, rotation, frame = stored
    tiles = Tiles(layout, len(frame.scales))
    check_tiles("sketches", kv, tiles)
    check_frame("sketches", frame, tiles)
    sketches = sketches_of(rotation, tiles, bits, factors, len(kv))
    at_once = max(KEYS, ROWS // tiles.heads // KEYS * KEYS)
    for done in range(0, stop - first, at_once):
        start = in_memory(kv.device, first + done if done else first)
        n_tokens = min(at_once, stop - first - done)
        rows = 1 if n_tokens == 1 else KEYS
        with telling("sketching keys"):
            sketch_kernel[(triton.cdiv(n_tokens, rows), tiles.heads)](
                kv, start, frame, rotation.weights, sketches, rotation.work, n_tokens,
                SEGMENT * len(kv), T=tiles, BITS=rotation.bits, ROWS=rows, num_warps=4,
                enable_fp_fusion=False,
            )  # fmt: skip


def check_frame(name: str, frame: Frame, tiles: Tiles) -> None:
    """CudaOpsError unless the frame is one of these keys."""
    parts: Any = frame
    shape = tiles.heads, sketch_bits(tiles.layout.head_dim)
    for part, x in zip(("centre", "scales", "inverse"), parts):
        check_floats(f"{name}: {part}", x, shape)


def key_moments(
    kv: torch.Tensor, layout: TileLayout, n_kv_heads: int, first: int, stop: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and variance of the stored keys of tokens first .. stop-1 of each KV head, float32
    (J, E) each.

    The bits of `ops.select.key_moments`: segments are summed in float32, their sums in float64.
    Raises CudaOpsError where shapes do not fit, or no such tokens are stored.
    """
    tiles = Tiles(layout, n_kv_heads)
    check_tiles("moments of keys", kv, tiles)
    if not 0 <= first < stop <= SEGMENT * len(kv):
        raise CudaOpsError(
            f"moments of keys: tokens {first} to {stop - 1}, expected some of the "
            f"{SEGMENT * len(kv)} stored"
        )
    n = (stop - 1) // SEGMENT - first // SEGMENT + 1
    shape = n, n_kv_heads, layout.head_dim
    sums, squares = (torch.empty(shape, device=kv.device) for _ in range(2))
    sums_kernel[(n, n_kv_heads)](
        kv, sums, squares, first, stop, T=tiles, TILE=TILE, num_warps=4, enable_fp_fusion=False
    )
    total, square = (x.double().sum(0).cpu().numpy() for x in (sums, squares))
    return moments_of(total, square, stop - first, layout)


def sketches_of(
    rotation: Rotation, tiles: Tiles, bits: torch.Tensor, factors: torch.Tensor, n_segments: int
) -> Sketches:
    """Columns as sketches; CudaOpsError unless they have so many segments, and the rotation fits
    the keys."""
    n_bits = sketch_bits(tiles.layout.head_dim)
    if rotation.bits != n_bits:
        raise CudaOpsError(
            f"sketches: a rotation of {rotation.bits}, expected {n_bits} for these keys"
        )
    for part, x, item_bytes in (("bits", bits, n_bits // 8), ("factors", factors, 2)):
        shape = n_segments, tiles.heads * SEGMENT * item_bytes
        if x.dtype != torch.uint8 or tuple(x.shape) != shape or not x.is_contiguous():
            raise CudaOpsError(
                f"sketches: {part} are {x.dtype} {tuple(x.shape)}, expected contiguous uint8 "
                f"{shape}"
            )
    shape = n_segments, tiles.heads, SEGMENT
    return Sketches(bits.view(*shape, n_bits // 8), factors.view(torch.float16).view(shape))
