"""The tokens with the largest products q . k among all stored keys; and the products themselves."""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention.decode.scores import key_scores
from ...attention.layout import SEGMENT, TILE
from ...attention.shape import shape_of
from ...attention.work import HEAD_SCORES
from ..best import entry_of, make_room, mark_best, start
from ..choice import Range
from ..lists import clear, mark_taken, write_list
from ..masks import low_bit
from ..queries import pack_queries
from ..scores import at_least, cost_of
from .arguments import AllProducts, Query, Scratch


@jit
def _is_taken(taken, position):
    return len(taken) > 0 and (taken[position >> 6] >> np.uint64(position & 63)) & np.uint64(
        1
    ) != np.uint64(0)


@jit
def _collect(s, lo, hi, segment, taken, limit, entries, n):
    """Append the tokens lo .. hi-1 of a segment whose scores at address s reach the limit, except
    for those that are taken."""
    for i in range(lo // TILE * TILE, hi, TILE):
        hits = at_least(s + 4 * i, limit)
        while hits:
            t = i + low_bit(hits)
            hits &= hits - np.uint64(1)
            if lo <= t < hi and not _is_taken(taken, segment * SEGMENT + t):
                cost = cost_of(np.uint64(v.load_u32(s, 4 * t)))
                entries[n] = entry_of(cost, segment * SEGMENT + t)
                n += 1
    return n


@jit
def find_largest(shape, segments, j, rows, n, among, taken, k, seed, scratch):
    """Find candidates for n query heads of KV head j, whose rows begin at an address: among them
    are the k largest products of each with keys first .. last-1."""
    candidates, s = scratch.candidates, address(scratch.works)
    limits, entries, counts = candidates.limits, candidates.entries, candidates.counts
    parts, last_segment = s + 4 * HEAD_SCORES, (among.last - 1) // SEGMENT
    start(n, candidates)
    for segment in range(among.first // SEGMENT, last_segment + 1):
        base = segments[segment] + j * shape.head_bytes
        later = segments[min(segment + 1, last_segment)] + j * shape.head_bytes
        lo = max(among.first - segment * SEGMENT, 0)
        hi = min(among.last - segment * SEGMENT, SEGMENT)
        key_scores(shape, rows, base, lo, hi, parts, s, later)
        for h in range(n):
            counts[h] = _collect(
                s + h * HEAD_SCORES, lo, hi, segment, taken, limits[h], entries[h], counts[h]
            )
            make_room(h, k, seed, candidates, entries.shape[1])


def make_flat(k_type, v_type, blocks, heads):
    """The kernel for KV types, rows of 32 * blocks and `heads` query heads at a time."""

    @kernel
    def flat_kernel(
        share: Share,
        query: Query,
        memory: Scratch,
        n_kv_heads: int,
        among: Range,
        k: int,
        seed: int,
    ):
        """Lists as the Hamming scan's. Reads the K rows and scales once for each pass."""
        shape, scratch = shape_of(k_type, v_type, blocks, heads), of_thread(memory, share.part)
        group, marks, lists = query.q.shape[1] // n_kv_heads, scratch.candidates.marks, query.lists
        j = take(share.ticket)
        while j < n_kv_heads:
            taken = query.taken[j]
            clear(marks, among.stop)
            pack_queries(shape, query.q, j, group, scratch.rows)
            for g in range(0, group, heads):
                n, rows = min(heads, group - g), address(scratch.rows[g])
                find_largest(shape, query.segments, j, rows, n, among, taken, k, seed, scratch)
                mark_best(n, k, seed, scratch.candidates)
            mark_taken(taken, among.stop, marks)
            lists.counts[j] = write_list(
                marks, among.first, among.last, among.stop, lists.tokens[j]
            )
            j = take(share.ticket)

    return flat_kernel


def make_products(k_type, v_type, blocks, heads):
    """As `make_flat`, for all products instead of the largest. Item i is segment i // J of KV head
    i % J."""

    @kernel
    def products_kernel(share: Share, arrays: AllProducts, n_kv_heads: int, stop: int):
        """out float32[H, S] = q . k of the tokens 0 .. stop-1, S >= stop."""
        q, out, rows = arrays.q, arrays.out, arrays.rows[share.part]
        group, s = q.shape[1] // n_kv_heads, address(arrays.works[share.part])
        shape = shape_of(k_type, v_type, blocks, heads)
        n_items = (stop + SEGMENT - 1) // SEGMENT * n_kv_heads
        item = take(share.ticket)
        while item < n_items:
            segment, j = item // n_kv_heads, item % n_kv_heads
            pack_queries(shape, q, j, group, rows)
            base = arrays.segments[segment] + j * shape.head_bytes
            hi = min(stop - segment * SEGMENT, SEGMENT)
            for g in range(0, group, heads):
                key_scores(shape, address(rows[g]), base, 0, hi, s + 4 * HEAD_SCORES, s, base)
                for h in range(g, min(g + heads, group)):
                    for t in range(hi):
                        score = v.load_one_f32(s, (h - g) * HEAD_SCORES + 4 * t)
                        out[j * group + h, segment * SEGMENT + t] = score
            item = take(share.ticket)

    return products_kernel
