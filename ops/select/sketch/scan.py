"""Estimates of q . k from one bit per rotated dimension: the sketch index of `topk`.

    key    y = R k, R a random rotation;  bits: sign(y_i);  factor: f16(|k|^2 / sum |y_i|)
    q . k  is estimated by factor * sum of sign(y_i) (R q)_i, which is unbiased (RaBitQ, section 3:
           norm and correction enter only as this quotient)

The sum is looked up by half bytes in tables of int8 that the query has prepared; its rounding is a
twentieth of the estimate's own error. Of the best estimates of each query head a group's union is
scored exactly and each head takes its k best of that.

    bits     [token][padded / 8]     padded: head_dim up to a multiple of 64, 128, 256
    factors  f16 [token]
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import step
from ....jit.launch.views import lent
from ...attention import shape as of
from ...attention.layout import SEGMENT
from ..best import prune
from ..candidates import rerank
from ..dense import dense
from ..lists import clear, mark, write_list
from ..masks import WORDS, filled_words, kind_of, low_bit, trim
from ..queries import make_query_tables, pack_queries
from ..sampling import first_limits, put_order, samples
from ..scores import cost_of, float_bits, score_of
from .sums import sum_segment
from .tables import CALL, SCRATCH


@jit
def _collect(kind, masks, sums, factors, segment, limits, entries, seen):
    """Append the tokens of one segment's masks whose estimates reach their query's limit."""
    some = filled_words(kind, masks.ctypes.data)
    while some:
        i = low_bit(some)
        some &= some - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n = masks[h, w], seen[h]
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            estimate = np.float32(sums[h, t]) * v.load_half(factors, 2 * t)
            cost = cost_of(np.uint64(float_bits(estimate)))
            entries[h, n] = (cost << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
            n += estimate >= limits[h]
        seen[h] = n


@jit
def _scan_sketches(
    kind, padded, bits, factors, j, first, last, begin, end, k, seed, tables, work, limits,
    entries, seen, spare, histogram,
):  # fmt: skip
    """Best k estimates among entries and the tokens first .. last-1 of some segments, per query.

    Segments: begin .. end-1 of the order in `work`. As the Hamming scan it looks at a segment's
    masks when the next one's are made.
    """
    bytes_at, masks, sums, order = work
    to_bits, to_factors = j * SEGMENT * (padded // 8), 2 * j * SEGMENT
    for i in range(begin, end + 1):
        turn = i & 1
        if i < end:
            segment, ahead = order[i], order[min(i + 1, end - 1)]
            sum_segment(
                kind, padded, bits[segment] + to_bits, factors[segment] + to_factors,
                bits[ahead] + to_bits, factors[ahead] + to_factors, tables.ctypes.data, limits,
                bytes_at.ctypes.data, np.int64(masks[turn].ctypes.data),
                np.int64(sums[turn].ctypes.data),
            )  # fmt: skip
        if i > begin:
            done = order[i - 1]
            trim(masks[1 - turn], done, first, last)
            _collect(
                kind, masks[1 - turn], sums[1 - turn], factors[done] + to_factors, done, limits,
                entries, seen,
            )  # fmt: skip
            for h in range(len(seen)):
                if seen[h] + SEGMENT > entries.shape[1]:
                    worst = prune(
                        entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram
                    )  # fmt: skip
                    seen[h], limits[h] = k, score_of(worst)


@jit
def _candidates(
    kind, padded, bits, factors, j, first, last, k, seed, tables, work, limits, entries, seen,
    spare, histogram,
):  # fmt: skip
    """entries[h][: seen[h]] = the k best estimates of each query, if there are so many."""
    begin, order = 0, work[3]
    limits[:], seen[:] = -np.inf, 0
    n, _ = put_order(first, last, 1, order)
    for stride, wanted in samples(first, last, k):
        if stride:
            seen[:] = 0
            n, begin = put_order(first, last, stride, order)
            _scan_sketches(
                kind, padded, bits, factors, j, first, last, 0, begin, k, seed, tables, work,
                limits, entries, seen, spare, histogram,
            )  # fmt: skip
            begin = begin if first_limits(wanted, limits, entries, seen, spare, histogram) else 0
    again = True
    while again:
        if not begin:
            seen[:] = 0
        _scan_sketches(
            kind, padded, bits, factors, j, first, last, begin, n, k, seed, tables, work, limits,
            entries, seen, spare, histogram,
        )  # fmt: skip
        again, begin = False, 0
        for h in range(len(seen)):
            if seen[h] < k and limits[h] != -np.inf:
                limits[h] = -np.inf
                again = True
    for h in range(len(seen)):
        if seen[h] > k:
            prune(entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram)
            seen[h] = k


@jit
def _head(
    shape, kind, padded, q, segments, bits, factors, rotation, j, group, first, last, stop, k, few,
    seed, index, rows, turned, tables, room, work, scan, limits, entries, seen, spare, marks,
    chosen, histogram,
):  # fmt: skip
    """The list of one KV head; gives its length. `chosen` gathers the marks of all rounds."""
    together = len(seen)
    pack_queries(q, j, group, of.rotation(shape) if of.rotates_k(shape) else 0, rows)
    clear(chosen, stop)
    for g in range(0, group, together):
        for h in range(together):
            turned[0, :] = 0.0
            for i in range(q.shape[2]):
                turned[0, i] = q[0, j * group + g + h, i]
            weights = np.int64(rotation.ctypes.data)
            dense(
                np.int64(turned[0].ctypes.data), padded, weights, weights + 4 * padded * padded,
                padded, np.int64(turned[1].ctypes.data),
            )  # fmt: skip
            make_query_tables(turned[1], padded, tables[h])
        s = np.int64(work.ctypes.data)
        _candidates(
            kind, padded, bits, factors, j, first, last, few, seed, tables, scan, limits,
            entries, seen, spare, histogram,
        )  # fmt: skip
        clear(marks, stop)
        for h in range(together):
            mark(entries[h], seen[h], marks)
        n = write_list(marks, first, last, last, index) - first
        rerank(
            shape, segments, j, index[first : first + n], k, seed, rows[g : g + together], room,
            s, limits, entries, seen, spare, marks, histogram,
        )  # fmt: skip
        for w in range((last + 63) // 64):
            chosen[w] |= marks[w]
    return write_list(chosen, first, last, stop, index)


def make_sketch(k_type, v_type, blocks, padded, together):
    """The kernel for KV types, rows of 32 * blocks, `padded` bits, `together` queries at a time."""

    @step("iiiiiiiii")
    def kernel(part, parts, ticket, call, scratch, n_kv_heads, first, last, stop, k, few, seed):
        """q float32[1, H, E]; lists as the Hamming scan's, with room for `few` a query. Reads
        padded / 8 + 2 bytes a token and KV head, and the K rows of the candidates."""
        q, segments, bits, factors, rotation, index, counts = lent(call, CALL)
        (
            rows, turned, sums, rooms, works, limits, masks, near, orders, best, entries, seen,
            spare, marks, chosen, histograms,
        ) = lent(scratch, SCRATCH)  # fmt: skip
        scan = limits[part], masks[part], near[part], orders[part]
        j = take(ticket)
        while j < n_kv_heads:
            counts[j] = _head(
                of.shape_of(k_type, v_type, blocks, together), kind_of(padded, together), padded, q,
                segments, bits, factors, rotation, j, q.shape[1] // n_kv_heads, first, last, stop,
                k, few, np.uint32(seed), index[j], rows[part], turned[part], sums[part],
                rooms[part].ctypes.data, works[part], scan, best[part], entries[part], seen[part],
                spare[part], marks[part], chosen[part], histograms[part],
            )  # fmt: skip
            j = take(ticket)

    return kernel
