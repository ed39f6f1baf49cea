"""The best estimates of q . k among blocks of similar keys, most of which are never looked at.

    k of block b:  q . k  is estimated by  q . mean_b + factor * sum of sign(y_i) (R q)_i,
                   y = R (k - mean_b), and never by more than
    bound_b      = q . mean_b + REACH * |q| * spread_b / sqrt(head_dim)

A key that stands REACH standard deviations above its block's mean, seen from a random direction,
is found with the rest of the block or not at all: a block whose bound is below what is needed
is ruled out by its mean alone. As the bound caps the estimates, the choice is that of all keys'
min(estimate, bound), whatever was ruled out on the way.
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
from ..masks import bit_count, kind_of, low_bit
from ..queries import make_query_tables, pack_queries
from ..sampling import first_limits, put_order, samples
from ..scores import at_least, cost_of, score_of
from .layout import BLOCK, BLOCKS
from .offsets import factors_at, means_at, order_at, scales_at
from .sums import DIMENSIONS, add_means, signed_sums
from .tables import CALL, SCRATCH

REACH = 4.0


@jit
def _rule_out(kind, bits, part, ahead, queries, reach, limits, turn, centres, bounds, wanted):
    """wanted[turn, query]: a bit for each block of a segment that can reach the query's limit.

    Asks for the next segment's means. Addresses: queries; centres and bounds f32 [query][32], for
    q . mean and the bound.
    """
    n = len(reach)
    for i in range(0, 4 * BLOCKS * n, 64):
        v.store(centres, i, v.set_f32(0.0))
    for d in range(0, bits, DIMENSIONS):
        means, q = part + means_at(bits) + BLOCKS * d, queries + 4 * d
        for line in range(0, BLOCKS * DIMENSIONS, 64):
            v.prefetch_l1(ahead, means_at(bits) + BLOCKS * d + line)
        add_means(kind, means, q, centres)
        add_means(kind, means + 16, q, centres + 64)
    for line in range(0, 8 * BLOCKS, 64):
        v.prefetch_l1(ahead, scales_at(bits) + line)
    scales = part + scales_at(bits)
    for h in range(n):
        wanted[turn, h] = 0
        for half in range(2):
            line, i = 64 * half, 4 * BLOCKS * h + 64 * half
            centre = v.load_f32(centres, i) * v.load_f32(scales, line)
            spread = v.load_f32(scales, 4 * BLOCKS + line)
            v.store(centres, i, centre)
            v.store(bounds, i, v.fma(spread, v.set_f32(reach[h]), centre))
            wanted[turn, h] |= at_least(bounds + i, limits[h]) << np.uint64(16 * half)


@jit
def _ask_for(bits, part, turn, wanted):
    """Ask for the blocks of a segment that any query wants; gives how many times one is wanted."""
    some, n = np.uint64(0), 0
    for h in range(wanted.shape[1]):
        some |= wanted[turn, h]
        n += bit_count(wanted[turn, h])
    while some:
        block = low_bit(some)
        some &= some - np.uint64(1)
        for line in range(0, BLOCK * bits // 8, 64):
            v.prefetch(part, BLOCK * bits // 8 * block + line)
        v.prefetch(part, factors_at(bits) + 2 * BLOCK * block)
        v.prefetch(part, order_at(bits) + 2 * BLOCK * block)
    return n


@jit
def _collect(
    kind, bits, part, segment, first, last, wanted, table, unit, limit, centres, bounds, sums,
    entries, h, n,
):  # fmt: skip
    """Append the tokens of one query's wanted blocks whose estimates reach its limit; gives n.

    Addresses: part, table; centres and bounds of the query; sums, room for 32 bytes, 32 floats.
    """
    places = sums + 64
    while wanted:
        block = low_bit(wanted)
        wanted &= wanted - np.uint64(1)
        signed_sums(kind, part + BLOCK * bits // 8 * block, table, sums)
        some = np.uint64(0)
        for t in range(0, BLOCK, 16):
            factor = v.load_f16(part, factors_at(bits) + 2 * (BLOCK * block + t))
            estimate = v.load_i8_f32(sums, t) * v.set_f32(unit) * factor
            estimate = estimate + v.bcast_f32(centres, 4 * block)
            estimate = v.vmin(estimate, v.bcast_f32(bounds, 4 * block))
            v.store(places, 4 * t, estimate)
            some |= at_least(places + 4 * t, limit) << np.uint64(t)
        while some:
            t = low_bit(some)
            some &= some - np.uint64(1)
            token = np.int64(v.load_u16(part, order_at(bits) + 2 * (BLOCK * block + t)))
            position = segment * SEGMENT + token
            cost = cost_of(np.uint64(v.load_u32(places, 4 * t)))
            entries[h, n] = (cost << np.uint64(32)) | np.uint64(position)
            n += first <= position < last
    return n


@jit
def _scan_blocks(
    kind, bits, items, offset, first, last, begin, end, k, seed, scan, limits, entries, seen, spare,
    histogram,
):  # fmt: skip
    """Best k estimates among entries and the tokens first .. last-1 of some segments, per query.

    Segments: begin .. end-1 of the order in `scan`. Blocks of one are looked at when the next one's
    means have been: they are then on their way from memory. Gives how many blocks were looked at,
    for each query.
    """
    queries, reach, tables, units, centres, bounds, wanted, sums, order = scan
    # Addresses: each slice of an array would count a reference, atomically.
    q, table = np.int64(queries.ctypes.data), np.int64(tables.ctypes.data)
    centre, bound = np.int64(centres.ctypes.data), np.int64(bounds.ctypes.data)
    room, row, heads, looked = np.int64(sums.ctypes.data), 4 * BLOCKS, len(seen), 0
    most = min(entries.shape[1], 2 * k + 4 * SEGMENT)
    for i in range(begin, end + 1):
        turn = i & 1
        if i < end:
            part, here = items[order[i]] + offset, turn * heads * row
            ahead = items[order[min(i + 1, end - 1)]] + offset
            _rule_out(
                kind, bits, part, ahead, q, reach, limits, turn, centre + here, bound + here,
                wanted,
            )  # fmt: skip
            looked += _ask_for(bits, part, turn, wanted)
        if i > begin:
            done, turn = order[i - 1], 1 - turn
            for h in range(heads):
                here = (turn * heads + h) * row
                seen[h] = _collect(
                    kind, bits, items[done] + offset, done, first, last, wanted[turn, h],
                    table + 4 * bits * h, units[h], limits[h], centre + here, bound + here, room,
                    entries, h, seen[h],
                )  # fmt: skip
                if seen[h] + SEGMENT > most:
                    worst = prune(
                        entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram
                    )  # fmt: skip
                    seen[h], limits[h] = k, score_of(worst)
    return looked


@jit
def _candidates(
    kind, bits, items, offset, first, last, k, seed, scan, limits, entries, seen, spare, histogram
):
    """entries[h][: seen[h]] = the k best estimates of each query, if there are so many."""
    looked, begin, again = 0, 0, True
    limits[:], seen[:], order = -np.inf, 0, scan[8]
    n, _ = put_order(first, last, 1, order)
    for stride, wanted in samples(first, last, k):
        if stride:
            seen[:] = 0
            n, begin = put_order(first, last, stride, order)
            looked += _scan_blocks(
                kind, bits, items, offset, first, last, 0, begin, k, seed, scan, limits, entries,
                seen, spare, histogram,
            )  # fmt: skip
            begin = begin if first_limits(wanted, limits, entries, seen, spare, histogram) else 0
    while again:
        if not begin:
            seen[:] = 0
        looked += _scan_blocks(
            kind, bits, items, offset, first, last, begin, n, k, seed, scan, limits, entries, seen,
            spare, histogram,
        )  # fmt: skip
        again, begin = False, 0
        for h in range(len(seen)):
            if seen[h] < k and limits[h] != -np.inf:  # the sample promised too much
                limits[h], again = -np.inf, True
    for h in range(len(seen)):
        if seen[h] > k:
            prune(entries[h], seen[h], k, 32, seed, spare[0], spare[1], histogram)
            seen[h] = k
    return looked


@jit
def _prepare(q, row, bits, head_dim, rotation, h, turned, scan):
    """What the scan needs of query head `row`: the query itself, its table and its reach."""
    queries, reach, tables, units = scan[:4]
    square = np.float32(0.0)
    turned[0, :] = 0.0
    for i in range(head_dim):
        x = q[0, row, i]
        turned[0, i] = queries[h, i] = x
        square += x * x
    dense(
        np.int64(turned[0].ctypes.data), bits, rotation, rotation + 4 * bits * bits, bits,
        np.int64(turned[1].ctypes.data),
    )  # fmt: skip
    units[h] = make_query_tables(turned[1], bits, tables[h])
    reach[h] = np.float32(REACH) * np.sqrt(square / np.float32(head_dim))


@jit
def _head(
    shape, kind, bits, q, segments, items, item_bytes, rotation, j, group, first, last, stop, k,
    few, seed, index, rows, turned, room, work, scan, limits, entries, seen, spare, marks,
    chosen, listed, histogram,
):  # fmt: skip
    """The list of one KV head; gives its length and how many blocks were looked at.

    Tokens of the open segment, which has no blocks yet, are candidates all.
    """
    together, looked = len(seen), 0
    unordered = max(first, min(last, stop // SEGMENT * SEGMENT))
    pack_queries(q, j, group, of.rotation(shape) if of.rotates_k(shape) else 0, rows)
    clear(chosen, stop)
    for g in range(0, group, together):
        for h in range(together):
            row = j * group + g + h
            _prepare(
                q, row, bits, q.shape[2], np.int64(rotation.ctypes.data), h, turned, scan
            )  # fmt: skip
        clear(marks, stop)
        if unordered > first:
            looked += _candidates(
                kind, bits, items, j * SEGMENT * item_bytes, first, unordered, few, seed, scan,
                limits, entries, seen, spare, histogram,
            )  # fmt: skip
            for h in range(together):
                mark(entries[h], seen[h], marks)
        n = write_list(marks, first, unordered, last, listed)
        rerank(
            shape, segments, j, listed[first:n], k, seed, rows[g : g + together], room,
            np.int64(work.ctypes.data), limits, entries, seen, spare, marks, histogram,
        )  # fmt: skip
        for w in range((last + 63) // 64):
            chosen[w] |= marks[w]
    return write_list(chosen, first, last, stop, index), looked


def make_blocks(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @step("iiiiiiiiii")
    def kernel(
        part, parts, ticket, call, scratch, item_bytes, n_kv_heads, first, last, stop, k, few, seed
    ):
        """q float32[1, H, E]; lists as the Hamming scan's. Reads bits / 32 + 0.25 bytes a token and
        KV head, bits / 8 + 4 of the tokens of each of the `looked` int64[J] blocks, and the K rows
        of the candidates."""
        q, segments, items, rotation, index, counts, looked = lent(call, CALL)
        (
            rows, turned, sums, rooms, works, _, _, _, orders, best, entries, seen, spare, marks,
            chosen, histograms, queries, reach, units, centres, bounds, wanted, block, listed,
        ) = lent(scratch, SCRATCH)  # fmt: skip
        scan = (
            queries[part], reach[part], sums[part], units[part], centres[part], bounds[part],
            wanted[part], block[part], orders[part],
        )  # fmt: skip
        j = take(ticket)
        while j < n_kv_heads:
            counts[j], looked[j] = _head(
                of.shape_of(k_type, v_type, blocks, together), kind_of(bits, together), bits, q,
                segments, items, item_bytes, rotation, j, q.shape[1] // n_kv_heads, first, last,
                stop, k, few, np.uint32(seed), index[j], rows[part], turned[part],
                rooms[part].ctypes.data, works[part], scan, best[part], entries[part], seen[part],
                spare[part], marks[part], chosen[part], listed[part], histograms[part],
            )  # fmt: skip
            j = take(ticket)

    return kernel
