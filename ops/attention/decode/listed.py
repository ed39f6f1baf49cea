"""Attention of one new token over a list of tokens per KV head: the reading half of sparse decode.

Tile by tile as dense decode, of rows that are copied together (`rows`).
"""

from ....jit.cached import jit
from ....jit.launch import Kernel
from ....jit.launch.atomics import take
from ....jit.launch.legacy_define import lent, step
from .. import shape as of
from ..layout import SEGMENT, TILE
from ..rotation import rotate_row
from ..work import TILE_SCORES, TILE_WORK
from .block import attend_tile, put_totals
from .rows import find_first, next_tile, tile_in
from .tables import CALL, SCRATCH
from .token import merge_blocks, put_queries


@jit
def _attend_listed(
    shape, q, index, segments, head, groups, softcap, weights, room, work, out, m, total
):  # fmt: skip
    """As `attend_block`, over the tokens index uint32[n]; room: of `listed_work_bytes`."""
    n, tile, (place, stride, n_weights) = len(index), tile_in(room), weights
    find_first(shape, index, segments, head, True, room)
    for i in range((n + TILE - 1) // TILE):
        ahead = next_tile(shape, index, i, segments, head, True, room)
        attend_tile(
            shape, q, tile, ahead, 0, n - i * TILE, groups, softcap,
            (place + 4 * TILE * i, stride, n_weights), i == 0, work, m, out,
        )  # fmt: skip
    put_totals(shape, groups, work, total)


def listed_kernel(k: int, v: int, blocks: int, heads: int) -> Kernel:
    """Attention of blocks of listed tokens: KV types (k, v), rows of 32 * blocks, `heads` query
    heads at a time. Item i is block i // J of KV head i % J, where it has that many."""

    @step("iiff")
    def kernel(part, parts, ticket, call, scratch, scale, softcap):
        """q, out float32[1, H, E]; index uint32[J, room], counts int64[J] of them are tokens.

        log_weights float32[H, room] or [0, 0]; scratch as GatherScratch has it.
        Reads the K and V rows and scales of the listed tokens once.
        """
        q, index, counts, segments, log_weights, _ = lent(call, CALL)
        works, rooms, partial, m, total, _ = lent(scratch, SCRATCH)
        shape = of.shape_of(k, v, blocks, heads)
        n_kv_heads, n, rows = len(counts), q.shape[2], partial.shape[2]
        group, weighed = q.shape[1] // n_kv_heads, len(log_weights) // n_kv_heads
        work, room = works[part].ctypes.data, rooms[part].ctypes.data
        queries, to_next = work + TILE_WORK + TILE_SCORES * rows, 4 * log_weights.shape[1]
        item = take(ticket)
        while item < len(partial) * n_kv_heads:
            i, j = item // n_kv_heads, item % n_kv_heads
            first, last = i * SEGMENT, min((i + 1) * SEGMENT, counts[j])
            if first < last:
                put_queries(shape, q[0, j * group].ctypes.data, group, n, scale, queries)
                weights = log_weights.ctypes.data + j * weighed * to_next + 4 * first
                _attend_listed(
                    shape, queries, index[j, first:last], segments, j, rows // heads, softcap,
                    (weights, to_next, weighed), room, work, partial[i, j].ctypes.data,
                    m[i, j].ctypes.data, total[i, j].ctypes.data,
                )  # fmt: skip
            item = take(ticket)

    return kernel


def merge_listed_kernel(k: int, v: int, blocks: int, heads: int) -> Kernel:
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
