"""The kernels of attention to shared rows: those of `decode.token` and `prefill.chunk`, for other
Shapes."""

from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take, word
from ....jit.launch.define import Share, bounds, kernel
from ....jit.launch.views import address
from ....jit.simd import load_one_f32, store
from ..arguments import CacheAddresses, Chunk, Heads, Scoring, TokenMemory
from ..decode.block import NO_WEIGHTS, attend_block, head_block
from ..decode.token import merge_blocks, put_queries
from ..layout import SEGMENT
from ..prefill.blocks import (
    KeyBlock,
    RowBlock,
    begin_rows,
    buffers_of,
    finish_rows,
    position_of,
    put_softmaxes,
)
from ..prefill.chunk import add_keys
from ..work import ROWS
from .shape import shape_of


def make_attend(code: int, blocks: int, heads: int) -> DefinedKernel:
    """`decode.token.make_attend` for a type of rows of 32 * blocks."""

    @kernel
    def attend_shared_kernel(
        share: Share,
        q: int,
        split: Heads,
        cache: CacheAddresses,
        window: int,
        scoring: Scoring,
        memory: TokenMemory,
    ):
        """Reads the rows and scales of the last `window` tokens up to `cache.start`, once."""
        shape, work = shape_of(code, blocks, heads), address(memory.works[share.part])
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
            near = min(item + share.parts, n_items - 1)
            next_base = word(cache.segments, 8 * (block0 + near // n_kv_heads))
            next_base += near % n_kv_heads * shape.head_bytes
            base = word(cache.segments, 8 * (block0 + i)) + j * shape.head_bytes
            begin = (block0 + i) * SEGMENT
            begin_token, stop_token = max(first - begin, 0), min(stop - begin, SEGMENT)
            attend_block(shape, block, base, begin_token, stop_token, NO_WEIGHTS, next_base)
            item = take(share.ticket)

    return attend_shared_kernel


def make_merge(code: int, blocks: int) -> DefinedKernel:
    """`decode.token.make_merge` for a type of rows of 32 * blocks."""

    @kernel
    def merge_shared_kernel(
        share: Share, split: Heads, start: int, window: int, out: int, memory: TokenMemory
    ):
        """out float32 (H, E) = the blocks' sums, weighted by their share of the softmax."""
        shape = shape_of(code, blocks, 1)
        n_tokens, group, n = word(start, 0) + 1, split.group, split.head_dim
        n_blocks = (n_tokens + SEGMENT - 1) // SEGMENT - max(0, n_tokens - window) // SEGMENT
        first, stop = bounds(share, split.n_kv_heads * group)
        for i in range(first, stop):
            row = address(memory.blocks.merged[i])
            top, total = merge_blocks(shape, memory.blocks, i // group, i % group, n_blocks, row)
            memory.masses[i, 0], memory.masses[i, 1] = top, total
            for c in range(n):
                store(out, 4 * (i * n + c), load_one_f32(row, 4 * c))

    return merge_shared_kernel


def make_chunk(code: int, blocks: int) -> DefinedKernel:
    """`prefill.chunk.make_chunk` for a type of rows of 32 * blocks."""

    @kernel
    def chunk_shared_kernel(
        share: Share, chunk: Chunk, n_kv_heads: int, start: int, window: int, scoring: Scoring
    ):
        """Tokens at positions start.., of which each sees `window`."""
        shape, part = shape_of(code, blocks, 1), share.part
        n_tokens, n_heads, _ = chunk.q.shape
        group = n_heads // n_kv_heads
        n_rows = n_tokens * group
        items = (n_rows + ROWS - 1) // ROWS * n_kv_heads
        at = buffers_of(shape, chunk.works[part], chunk.newest[part])
        item = items - 1 - take(share.ticket)
        while item >= 0:
            row0, head = item // n_kv_heads * ROWS, item % n_kv_heads
            rows = RowBlock(head, group, row0, min(ROWS, n_rows - row0), start)
            last = begin_rows(shape, chunk.q, rows, scoring.scale, at)
            oldest, width = max(position_of(rows, 0) - window + 1, 0), shape.keys
            for key in range(oldest // width * width, last + 1, width):
                keys = KeyBlock(chunk.segments, head, key, min(last + 1 - key, width), key)
                add_keys(shape, rows, keys, window, scoring.softcap, at)
            finish_rows(shape, rows, at, chunk.out)
            if chunk.softmaxes.shape[0]:
                put_softmaxes(rows, at, chunk.softmaxes)
            item = items - 1 - take(share.ticket)

    return chunk_shared_kernel
