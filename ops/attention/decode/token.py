"""Attention of one new token: split over KV heads and blocks of 1,024 tokens, then merged.

Both are steps that read the token's position from memory, so that a token's attention can be
recorded with the rest (`jit.launch`). Which thread takes a block changes no result.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch import Kernel
from ....jit.launch.atomics import take, word
from ....jit.launch.legacy_define import step
from ....jit.simd import hsum, load_f32, load_one_f32, set_f32, store, vexp
from .. import shape as of
from ..layout import SEGMENT
from ..rotation import rotate_row
from ..work import TILE_SCORES, TILE_WORK
from .block import NO_WEIGHTS, attend_block


@jit
def put_queries(shape, q, group, n, scale, out):
    """A KV head's `group` query heads (group, n) at an address, scaled, padded and rotated."""
    for h in range(group):
        row = out + 4 * h * of.padded(shape)
        for i in range(n):
            store(row, 4 * i, np.float32(load_one_f32(q, 4 * (h * n + i)) * scale))
        for i in range(n, of.padded(shape)):
            store(row, 4 * i, np.float32(0))
        if of.rotates_k(shape):
            rotate_row(row, of.padded(shape), of.rotation(shape))


@jit
def merge_blocks(shape, partial, m, total, n_blocks, rows, out):
    """Row = sum of partial outputs weighed by exp(m_b - max m) / sum, blocks in their order.

    Addresses of the first block's; those of the next stand `rows` heads further on.
    """
    stride = 4 * rows * of.padded(shape)
    top = load_one_f32(m, 0)
    for i in range(1, n_blocks):
        top = max(top, load_one_f32(m, 4 * rows * i))
    for c in range(of.vectors(shape)):
        store(out, 64 * c, set_f32(0.0))
    sums = set_f32(0.0)
    for i in range(n_blocks):
        w = vexp(set_f32(load_one_f32(m, 4 * rows * i) - top))
        sums = sums + w * set_f32(load_one_f32(total, 4 * rows * i))
        for c in range(of.vectors(shape)):
            x = load_f32(partial, i * stride + 64 * c) * w
            store(out, 64 * c, load_f32(out, 64 * c) + x)
    r = 16.0 / hsum(sums)
    for c in range(of.vectors(shape)):
        store(out, 64 * c, load_f32(out, 64 * c) * set_f32(r))


def attend_kernel(k: int, v: int, blocks: int, heads: int) -> Kernel:
    """Attention of blocks: KV types (k, v), rows of 32 * blocks, `heads` query heads at a time.

    What it shares with `merge_kernel`: addresses of partial float32[blocks, J, rows, padded] and of
    m and total float32[blocks, J, rows], where rows is the number of query heads a KV head
    (`group`), rounded up to a multiple of `heads`. Tokens max(0, start + 1 - window) to [start] are
    seen.
    """

    @step("iiiiiiiiiiiiff")
    def kernel(
        part, parts, ticket, q, n, n_kv_heads, group, segments, start, window, work, stride,
        partial, m, total, scale, softcap,
    ):  # fmt: skip
        """q float32[J * group, n]; work: `token_work_bytes` for each thread, `stride` bytes apart.

        Reads the K and V rows and scales of the tokens once.
        """
        shape = of.shape_of(k, v, blocks, heads)
        stop, work = word(start, 0) + 1, work + part * stride
        first, groups = max(0, stop - window), (group + heads - 1) // heads
        rows, block0 = groups * heads, first // SEGMENT
        n_items = ((stop + SEGMENT - 1) // SEGMENT - block0) * n_kv_heads
        queries = work + TILE_WORK + TILE_SCORES * rows
        item = take(ticket)
        while item < n_items:
            block, j = block0 + item // n_kv_heads, item % n_kv_heads
            put_queries(shape, q + 4 * n * group * j, group, n, scale, queries)
            # Likely the next one of this thread: the others have taken those between.
            near = min(item + parts, n_items - 1)
            following = word(segments, 8 * (block0 + near // n_kv_heads))
            lo, hi = max(first - block * SEGMENT, 0), min(stop - block * SEGMENT, SEGMENT)
            attend_block(
                shape, queries, word(segments, 8 * block) + j * of.head_bytes(shape), lo, hi,
                groups, softcap, NO_WEIGHTS, work, partial + 4 * item * rows * of.padded(shape),
                m + 4 * item * rows, total + 4 * item * rows,
                following + near % n_kv_heads * of.head_bytes(shape),
            )  # fmt: skip
            item = take(ticket)

    return kernel


def merge_kernel(k: int, v: int, blocks: int, heads: int) -> Kernel:
    """The outputs of `attend_kernel`'s blocks to those of the token."""

    @step("iiiiiiiiii")
    def kernel(
        part, parts, ticket, partial, m, total, merged, n, n_kv_heads, group, start, window, out
    ):  # fmt: skip
        """out float32[J * group, n] = the blocks' outputs by their share of the softmax.

        merged float32[J * group, padded] takes the rows before they are cut to n.
        """
        shape = of.shape_of(k, v, blocks, heads)
        stop, rows = word(start, 0) + 1, (group + heads - 1) // heads * heads
        n_blocks = (stop + SEGMENT - 1) // SEGMENT - max(0, stop - window) // SEGMENT
        row = 4 * of.padded(shape)
        n_heads = n_kv_heads * group
        for i in range(n_heads * part // parts, n_heads * (part + 1) // parts):
            head, place = i // group * rows + i % group, merged + i * row
            merge_blocks(
                shape, partial + head * row, m + 4 * head, total + 4 * head, n_blocks,
                n_kv_heads * rows, place,
            )  # fmt: skip
            if of.rotates_v(shape):
                rotate_row(place, of.padded(shape), of.rotation(shape))
            for c in range(n):
                store(out, 4 * (i * n + c), load_one_f32(place, 4 * c))

    return kernel
