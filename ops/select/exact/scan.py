"""The tokens with the largest products q . k among all keys; and the products themselves.

The k best of each query head are kept as a stream (`best`): its cost is the score's bits, turned so
that unsigned order is falling order of the scores.
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import step
from ....jit.launch.views import lent
from ...attention import shape as of
from ...attention.decode.scores import key_scores
from ...attention.layout import SEGMENT, TILE
from ...attention.work import HEAD_SCORES
from ..best import prune
from ..lists import clear, mark, write_list
from ..masks import low_bit
from ..queries import pack_queries
from ..scores import at_least, cost_of, score_of
from .tables import CALL, PRODUCTS, SCRATCH


@jit
def collect_scores(s, lo, hi, segment, limit, entries, n):
    """Append the tokens lo .. hi-1 of a segment whose scores at address s reach the limit."""
    for i in range(lo // TILE * TILE, hi, TILE):
        some = at_least(s + 4 * i, limit)
        while some:
            t = i + low_bit(some)
            some &= some - np.uint64(1)
            if lo <= t < hi:
                cost = cost_of(np.uint64(v.load_u32(s, 4 * t)))
                entries[n] = (cost << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
                n += 1
    return n


@jit
def _flat_head(
    shape, segments, j, group, first, last, k, seed, rows, work, limits, entries, seen, spare,
    marks, histogram,
):  # fmt: skip
    """Mark the k largest products of each query head among the keys first .. last-1."""
    heads = of.heads(shape)
    s, parts = work, work + 4 * HEAD_SCORES
    for g in range(0, group, heads):
        n = min(heads, group - g)
        for h in range(n):
            limits[h], seen[h] = -np.inf, 0
        for segment in range(first // SEGMENT, (last - 1) // SEGMENT + 1):
            base = segments[segment] + j * of.head_bytes(shape)
            lo = max(first - segment * SEGMENT, 0)
            hi = min(last - segment * SEGMENT, SEGMENT)
            key_scores(shape, rows[g].ctypes.data, base, lo, hi, parts, s)
            for h in range(n):
                seen[h] = collect_scores(
                    s + h * HEAD_SCORES, lo, hi, segment, limits[h], entries[h], seen[h]
                )
                if seen[h] + SEGMENT > entries.shape[1]:
                    worst = prune(
                        entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram
                    )  # fmt: skip
                    seen[h], limits[h] = k, score_of(worst)
        for h in range(n):
            if seen[h] > k:
                prune(entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram)
            mark(entries[h], min(seen[h], k), marks)


def make_flat(k_type, v_type, blocks, heads):
    """The kernel for KV types, rows of 32 * blocks and `heads` query heads at a time."""

    @step("iiiiiiii")
    def kernel(part, parts, ticket, call, scratch, n_kv_heads, first, last, stop, k, seed):
        """q float32[1, H, E]; lists as the Hamming scan's. Reads the K rows and scales once."""
        q, segments, index, counts = lent(call, CALL)
        rows, works, limits, entries, seen, spare, marks, histograms = lent(scratch, SCRATCH)
        group, shape = q.shape[1] // n_kv_heads, of.shape_of(k_type, v_type, blocks, heads)
        turn = of.rotation(shape) if of.rotates_k(shape) else 0
        j = take(ticket)
        while j < n_kv_heads:
            clear(marks[part], stop)
            pack_queries(q, j, group, turn, rows[part])
            _flat_head(
                shape, segments, j, group, first, last, k, np.uint32(seed), rows[part],
                works[part].ctypes.data, limits[part], entries[part], seen[part], spare[part],
                marks[part], histograms[part],
            )  # fmt: skip
            counts[j] = write_list(marks[part], first, last, stop, index[j])
            j = take(ticket)

    return kernel


def make_products(k_type, v_type, blocks, heads):
    """As make_flat, for all products instead of the best."""

    @step("iii")
    def kernel(part, parts, ticket, arrays, n_kv_heads, stop):
        """out float32[H, S] = q . k of the tokens 0 .. stop-1, S >= stop."""
        q, segments, rows, works, out = lent(arrays, PRODUCTS)
        group, s = q.shape[1] // n_kv_heads, works[part].ctypes.data
        shape = of.shape_of(k_type, v_type, blocks, heads)
        turn = of.rotation(shape) if of.rotates_k(shape) else 0
        j = take(ticket)
        while j < n_kv_heads:
            pack_queries(q, j, group, turn, rows[part])
            for segment in range((stop + SEGMENT - 1) // SEGMENT):
                base = segments[segment] + j * of.head_bytes(shape)
                hi = min(stop - segment * SEGMENT, SEGMENT)
                for g in range(0, group, heads):
                    q_row = rows[part, g].ctypes.data
                    key_scores(shape, q_row, base, 0, hi, s + 4 * HEAD_SCORES, s)
                    for h in range(g, min(g + heads, group)):
                        place = s + (h - g) * HEAD_SCORES
                        for t in range(hi):
                            score = v.load_one_f32(place, 4 * t)
                            out[j * group + h, segment * SEGMENT + t] = score
            j = take(ticket)

    return kernel
