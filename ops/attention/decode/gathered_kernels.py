"""Attention of one new token to a list of tokens for each KV head: sparse decode.

Listed rows are copied into a tile (`rows`), which is then read as in dense decode.
"""

from ....jit.cached import jit
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, bounds, kernel
from ....jit.launch.views import address
from ..arguments import GatheredMemory, GatheredTokens, Scoring
from ..layout import SEGMENT, TILE
from ..shape import shape_of
from .block import LogWeights, attend_tile, head_block, put_totals
from .rows import locate_first, next_tile, tile_in
from .token import merge_blocks, put_queries


@jit
def attend_list(shape, block, tokens, segments, j, weights, room):
    """As `attend_block`, for the tokens uint32[n] of KV head j; room: `gathered_work_bytes`."""
    n, tile = len(tokens), tile_in(room)
    locate_first(shape, tokens, segments, j, True, room)
    for i in range((n + TILE - 1) // TILE):
        later = next_tile(shape, tokens, i, segments, j, True, room)
        tile_weights = LogWeights(weights.place + 4 * TILE * i, weights.stride, weights.n_rows)
        attend_tile(shape, block, tile, later, 0, n - i * TILE, tile_weights, i == 0)
    put_totals(shape, block)


def make_gathered(k_type: int, v_type: int, blocks: int, heads: int) -> DefinedKernel:
    """Attention of blocks of listed tokens: KV types, rows of 32 * blocks, `heads` query heads at
    a time. Item i is block i // J of KV head i % J, where it has that many."""

    @kernel
    def gathered_kernel(
        share: Share, given: GatheredTokens, memory: GatheredMemory, scoring: Scoring
    ):
        """Reads the K and V rows and scales of the listed tokens once."""
        shape, q, counts = shape_of(k_type, v_type, blocks, heads), given.q, given.counts
        log_weights, n_kv_heads = given.log_weights, len(counts)
        n_blocks, _, rows, _ = memory.blocks.sums.shape
        group, weighed = q.shape[1] // n_kv_heads, len(log_weights) // n_kv_heads
        work, room = address(memory.works[share.part]), address(memory.rooms[share.part])
        to_next = 4 * log_weights.shape[1]
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            i, j = item // n_kv_heads, item % n_kv_heads
            first, stop = i * SEGMENT, min((i + 1) * SEGMENT, counts[j])
            if first < stop:
                block = head_block(shape, rows // heads, scoring.softcap, work, memory.blocks, i, j)
                queries = address(q[0, j * group])
                put_queries(shape, queries, group, q.shape[2], scoring.scale, block.queries)
                place = address(log_weights) + j * weighed * to_next + 4 * first
                weights, tokens = LogWeights(place, to_next, weighed), given.lists[j, first:stop]
                attend_list(shape, block, tokens, given.segments, j, weights, room)
            item = take(share.ticket)

    return gathered_kernel


def make_merge(k_type: int, v_type: int, blocks: int) -> DefinedKernel:
    """The outputs of `make_gathered`'s blocks to those of the token: `TileLayout.output_codes`."""

    @kernel
    def merge_gathered_kernel(share: Share, given: GatheredTokens, memory: GatheredMemory):
        shape, out = shape_of(k_type, v_type, blocks, 1), given.out
        n_heads, counts, merged = out.shape[1], given.counts, memory.blocks.merged
        group = n_heads // len(counts)
        first, stop = bounds(share, n_heads)
        for head in range(first, stop):
            j, h = head // group, head % group
            n_blocks = (counts[j] + SEGMENT - 1) // SEGMENT
            top, total = merge_blocks(shape, memory.blocks, j, h, n_blocks, address(merged[head]))
            memory.masses[head, 0], memory.masses[head, 1] = top, total
            for i in range(out.shape[2]):
                out[0, head, i] = merged[head, i]

    return merge_gathered_kernel
