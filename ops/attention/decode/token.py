"""Attention of one new token: split over KV heads and blocks of 1,024 tokens, then merged.

Both kernels read the token's position from memory, so that they can be recorded (`jit.launch`). No
result depends on which thread computes a block.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take, word
from ....jit.launch.define import Share, bounds, kernel
from ....jit.launch.views import address
from ....jit.simd import hsum, load_f32, load_one_f32, set_f32, store, vexp
from ..arguments import CacheAddresses, Heads, Scoring, TokenMemory
from ..layout import SEGMENT
from ..rotation import rotate_row
from ..shape import shape_of
from .block import NO_WEIGHTS, attend_block, head_block
from .integer_keys import split_query


@jit
def put_queries(shape, q, group, n, scale, out):
    """Write a KV head's query heads (group, n) to an address, scaled and padded.

    Rotates them if keys are rotated, and splits them if keys are multiplied as integers.
    """
    for h in range(group):
        row = out + 4 * h * shape.padded
        for i in range(n):
            store(row, 4 * i, np.float32(load_one_f32(q, 4 * (h * n + i)) * scale))
        for i in range(n, shape.padded):
            store(row, 4 * i, np.float32(0))
        if shape.rotates_k:
            rotate_row(row, shape.padded, shape.rotation)
        if shape.integer_keys:
            split_query(shape, row)


@jit
def merge_blocks(shape, blocks, j, h, n_blocks, out):
    """Row = sum of the blocks' sums weighted by exp(m_b - max m) / total, in the blocks' order.

    blocks: BlockOutputs, of which row h of KV head j is merged; out: address of its row. Returns
    max m and the total, by which the row can be merged with that of other tokens.
    """
    sums = address(blocks.sums[0, j, h])
    m, total = address(blocks.maxima[0, j, h:]), address(blocks.totals[0, j, h:])
    rows = blocks.maxima.shape[1] * blocks.maxima.shape[2]
    stride = 4 * rows * shape.padded
    top = load_one_f32(m, 0)
    for i in range(1, n_blocks):
        top = max(top, load_one_f32(m, 4 * rows * i))
    for c in range(shape.vectors):
        store(out, 64 * c, set_f32(0.0))
    whole = set_f32(0.0)
    for i in range(n_blocks):
        w = vexp(set_f32(load_one_f32(m, 4 * rows * i) - top))
        whole = whole + w * set_f32(load_one_f32(total, 4 * rows * i))
        for c in range(shape.vectors):
            x = load_f32(sums, i * stride + 64 * c) * w
            store(out, 64 * c, load_f32(out, 64 * c) + x)
    r = 16.0 / hsum(whole)
    for c in range(shape.vectors):
        store(out, 64 * c, load_f32(out, 64 * c) * set_f32(r))
    if shape.rotates_v:
        rotate_row(out, shape.padded, shape.rotation)
    return top, hsum(whole) / np.float32(16.0)


def make_attend(k_type: int, v_type: int, blocks: int, heads: int) -> DefinedKernel:
    """Attention of blocks: KV types, rows of 32 * blocks, `heads` query heads at a time."""

    @kernel
    def attend_kernel(
        share: Share,
        q: int,
        split: Heads,
        cache: CacheAddresses,
        window: int,
        scoring: Scoring,
        memory: TokenMemory,
    ):
        """The last `window` tokens up to `cache.start`; q: address of float32 (H, E).

        Reads the K and V rows and scales of the tokens once.
        """
        shape, work = shape_of(k_type, v_type, blocks, heads), address(memory.works[share.part])
        n_kv_heads, group, n = split.n_kv_heads, split.group, split.head_dim
        stop, rounds = word(cache.start, 0) + 1, (group + heads - 1) // heads
        first = max(0, stop - window)
        block0 = first // SEGMENT
        n_items = ((stop + SEGMENT - 1) // SEGMENT - block0) * n_kv_heads
        item = take(share.ticket)
        while item < n_items:
            i, j = item // n_kv_heads, item % n_kv_heads
            block = head_block(shape, rounds, scoring.softcap, work, memory.blocks, i, j)
            put_queries(shape, q + 4 * n * group * j, group, n, scoring.scale, block.queries)
            # Probably this thread's next item: the other threads take those in between.
            near = min(item + share.parts, n_items - 1)
            next_base = word(cache.segments, 8 * (block0 + near // n_kv_heads))
            next_base += near % n_kv_heads * shape.head_bytes
            base = word(cache.segments, 8 * (block0 + i)) + j * shape.head_bytes
            begin = (block0 + i) * SEGMENT
            begin_token, stop_token = max(first - begin, 0), min(stop - begin, SEGMENT)
            attend_block(shape, block, base, begin_token, stop_token, NO_WEIGHTS, next_base)
            item = take(share.ticket)

    return attend_kernel


def make_merge(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    """The outputs of `make_attend`'s blocks to those of the token: `TileLayout.output_codes`."""

    @kernel
    def merge_kernel(
        share: Share, split: Heads, start: int, window: int, out: int, memory: TokenMemory
    ):
        """out float32 (H, E) = the blocks' sums, weighted by their share of the softmax.

        start: address of the token's position; out: address.
        """
        shape = shape_of(k_type, v_type, blocks, 1)
        n_tokens, group, n = word(start, 0) + 1, split.group, split.head_dim
        n_blocks = (n_tokens + SEGMENT - 1) // SEGMENT - max(0, n_tokens - window) // SEGMENT
        first, stop = bounds(share, split.n_kv_heads * group)
        for i in range(first, stop):
            row = address(memory.blocks.merged[i])
            top, total = merge_blocks(shape, memory.blocks, i // group, i % group, n_blocks, row)
            memory.masses[i, 0], memory.masses[i, 1] = top, total
            for c in range(n):
                store(out, 4 * (i * n + c), load_one_f32(row, 4 * c))

    return merge_kernel
