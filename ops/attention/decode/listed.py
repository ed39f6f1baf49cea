"""Attention of one new token over a list of tokens per KV head: the reading half of sparse decode.

The rows of up to 1,024 listed tokens are copied into tiles of their own, which stay in the L2
cache, and dense decode reads those. A copy is so little work that many rows are on
their way from memory at once, which is what a gather needs; they are asked for into L2, as L1's
few fill buffers would stall. Per token and KV head of 64, q8_0, one core, out of 256K tokens: 61 ns
against 140 ns where they lie scattered (28 ns: dense).
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from ... import simd as v
from ...cache import jit
from ...simd import prefetch
from ...steps import Step
from ...steps.define import step
from ...steps.lent import lent
from ...steps.words import take
from .. import shape as of
from ..layout import SEGMENT, TILE
from ..rotation import rotate_row
from ..shape import at, read, write
from ..work import TILE_SCORES, TILE_WORK
from .block import attend_block
from .tables import CALL, SCRATCH
from .token import merge_blocks, put_queries

_AHEAD = 32  # tokens


def _copier(n_bytes):
    """An intrinsic (shape, from, to) that copies so many bytes between addresses."""

    @intrinsic
    def copy(typingctx, shape, source, target):
        def codegen(ctx, b, sig, vals):
            source, target = (at(b, x) for x in vals[1:])
            done, left = 0, int(n_bytes(shape))
            for size in (64, 32, 16, 8, 4, 2):
                while left >= size:
                    write(b, target, done, read(b, source, done, v.vty(v.I8, size)))
                    done, left = done + size, left - size
            return ctx.get_dummy_value()

        return types.void(shape, types.intp, types.intp), codegen

    return copy


_copy_key = _copier(lambda shape: shape.layout.k_row_bytes)
_copy_value = _copier(lambda shape: shape.layout.v_row_bytes)
_copy_scales = _copier(lambda shape: shape.layout.scale_row_bytes)


@jit
def _tile_of(shape, segments, head, token):
    """Address of the tile that holds a token."""
    tile = segments[token // SEGMENT] + head * of.head_bytes(shape)
    return tile + token % SEGMENT // TILE * of.tile_bytes(shape)


@jit
def _fetch(shape, tile, r, values):
    """Ask for the rows of row r of a tile."""
    for line in range(0, of.k_row_bytes(shape), 64):
        prefetch(tile, r * of.k_row_bytes(shape) + line)
    if of.scale_row_bytes(shape):
        prefetch(tile, of.scale_offset(shape) + r * of.scale_row_bytes(shape))
    if values:
        for line in range(0, of.v_row_bytes(shape), 64):
            prefetch(tile, of.v_offset(shape) + r * of.v_row_bytes(shape) + line)


@jit
def gather_rows(shape, index, segments, head, values, tiles):
    """Copy keys, scales and (if `values`) values of the tokens index uint32[n] into tiles.

    tiles: address of room for a head's segment; token i becomes row i % 16 of tile i // 16.
    """
    n = len(index)
    for i in range(n):
        ahead = np.int64(index[min(i + _AHEAD, n - 1)])
        _fetch(shape, _tile_of(shape, segments, head, ahead), ahead % TILE, values)
        token = np.int64(index[i])
        source, r = _tile_of(shape, segments, head, token), token % TILE
        target, row = tiles + i // TILE * of.tile_bytes(shape), i % TILE
        key, scales = of.k_row_bytes(shape), of.scale_row_bytes(shape)
        _copy_key(shape, source + r * key, target + row * key)
        at_scales = of.scale_offset(shape)
        _copy_scales(shape, source + at_scales + r * scales, target + at_scales + row * scales)
        if values:
            value, at_value = of.v_row_bytes(shape), of.v_offset(shape)
            _copy_value(shape, source + at_value + r * value, target + at_value + row * value)


def listed_kernel(k: int, v: int, blocks: int, heads: int) -> Step:
    """Attention of blocks of listed tokens: KV types (k, v), rows of 32 * blocks, `heads` query
    heads at a time. Item i is block i // J of KV head i % J, where it has that many."""

    @step("iiff")
    def kernel(part, parts, ticket, call, scratch, scale, softcap):
        """q, out float32[1, H, E]; index uint32[J, room], counts int64[J] of them are tokens.

        log_weights float32[H, room] or [0, 0]; scratch as GatherScratch has it.
        Reads the K and V rows and scales of the listed tokens once.
        """
        q, index, counts, segments, log_weights, _ = lent(call, CALL)
        works, tiles, partial, m, total, _ = lent(scratch, SCRATCH)
        shape = of.shape_of(k, v, blocks, heads)
        n_kv_heads, n, rows = len(counts), q.shape[2], partial.shape[2]
        group, weighed = q.shape[1] // n_kv_heads, len(log_weights) // n_kv_heads
        work, tile = works[part].ctypes.data, tiles[part].ctypes.data
        queries, to_next = work + TILE_WORK + TILE_SCORES * rows, 4 * log_weights.shape[1]
        item = take(ticket)
        while item < len(partial) * n_kv_heads:
            i, j = item // n_kv_heads, item % n_kv_heads
            first, last = i * SEGMENT, min((i + 1) * SEGMENT, counts[j])
            if first < last:
                put_queries(shape, q[0, j * group].ctypes.data, group, n, scale, queries)
                gather_rows(shape, index[j, first:last], segments, j, True, tile)
                weights = log_weights.ctypes.data + j * weighed * to_next + 4 * first
                attend_block(
                    shape, queries, tile, 0, last - first, rows // heads, softcap,
                    (weights, to_next, weighed), work, partial[i, j].ctypes.data,
                    m[i, j].ctypes.data, total[i, j].ctypes.data, tile,
                )  # fmt: skip
            item = take(ticket)

    return kernel


def merge_listed_kernel(k: int, v: int, blocks: int, heads: int) -> Step:
    """The outputs of `listed_kernel`'s blocks to those of the token."""

    @step("ii")
    def kernel(part, parts, ticket, call, scratch):
        q, _, counts, _, _, out = lent(call, CALL)
        _, _, partial, m, total, merged = lent(scratch, SCRATCH)
        shape = of.shape_of(k, v, blocks, heads)
        _, n_kv_heads, rows, padded = partial.shape
        n_heads, group = q.shape[1], q.shape[1] // n_kv_heads
        for head in range(n_heads * part // parts, n_heads * (part + 1) // parts):
            j, h, place = head // group, head % group, merged[head].ctypes.data
            merge_blocks(
                shape, partial[0, j, h].ctypes.data, m[0, j, h:].ctypes.data,
                total[0, j, h:].ctypes.data, (counts[j] + SEGMENT - 1) // SEGMENT,
                n_kv_heads * rows, place,
            )  # fmt: skip
            if of.rotates_v(shape):
                rotate_row(place, padded, of.rotation(shape))
            for i in range(q.shape[2]):
                out[0, head, i] = merged[head, i]

    return kernel
