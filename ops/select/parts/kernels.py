"""The entries of a process's best tokens, the limits of all processes, and the lists up to them."""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention.layout import SEGMENT
from ...attention.shape import shape_of
from ..best import (
    entry_of,
    kth_cost,
    position_hash,
    prune,
    prune_scores,
    tie_limit,
)
from ..choice import Range
from ..exact.arguments import Scratch as ExactMemory
from ..exact.scan import find_largest
from ..lists import clear, write_list
from ..masks import kind_of
from ..queries import pack_queries
from ..signatures.arguments import Head, Scratch
from ..signatures.hamming import find_nearest, put_segments, tally_of
from .arguments import Entries, LimitMemory, Limits, ListMemory, Searched, Signed, Surrounded

_LOW = np.uint64(0xFFFFFFFF)
_COST_BITS = 8  # of costs of signatures, see `lots`
_NO_TOKEN = ~np.uint64(0)


@jit
def _leave_nearest(kind, head, n, due, queries, tally, scratch):
    """As `mark_nearest`, but leave the k nearest of each query in its entries, in no order."""
    find_nearest(kind, head, n, due, queries, tally, scratch)
    counts, k = tally.counts, head.k
    spare, histogram = scratch.spare, scratch.histogram
    for h in range(len(counts)):
        if counts[h] > k:
            prune(
                scratch.entries[h], counts[h], k, _COST_BITS, head.seed, spare[0], spare[1],
                histogram,
            )  # fmt: skip


def make_nearest(bits, together):
    """The kernel for signatures of `bits` bits, `together` queries of a group at a time."""

    @kernel
    def nearest_entries_kernel(
        share: Share, signed: Signed, memory: Scratch, among: Range, k: int, seed: int
    ):
        """The k of first .. last-1 nearest to each query, as `hamming` chooses them."""
        scratch, (n_kv_heads, group) = of_thread(memory, share.part), signed.queries.shape
        tally = tally_of(scratch.tally, together)
        n, due = put_segments(among, scratch.order)
        j = take(share.ticket)
        while j < n_kv_heads:
            offset = j * SEGMENT * (bits // 8)
            head = Head(signed.items, offset, among, signed.taken[j], k, seed)
            for g in range(0, group, together):
                queries = signed.queries[j, g : g + together]
                _leave_nearest(kind_of(bits, together), head, n, due, queries, tally, scratch)
                for h in range(together):
                    entries = scratch.entries[h]
                    for i in range(k):
                        signed.entries[j * group + g + h, i] = entries[i]
            j = take(share.ticket)

    return nearest_entries_kernel


def make_largest(k_type, v_type, blocks, heads):
    """The kernel for KV types, rows of 32 * blocks and `heads` query heads at a time."""

    @kernel
    def largest_entries_kernel(
        share: Share, searched: Searched, memory: ExactMemory, n_kv_heads: int, among: Range,
        k: int, seed: int,
    ):  # fmt: skip
        """The k largest products of the keys first .. last-1 for each query head. Where fewer are
        numbers, the other entries have no token. Reads the K rows once for each pass."""
        shape, scratch = shape_of(k_type, v_type, blocks, heads), of_thread(memory, share.part)
        candidates, group = scratch.candidates, searched.q.shape[1] // n_kv_heads
        j = take(share.ticket)
        while j < n_kv_heads:
            pack_queries(shape, searched.q, j, group, scratch.rows)
            for g in range(0, group, heads):
                n, rows, taken = min(heads, group - g), address(scratch.rows[g]), searched.taken[j]
                find_largest(shape, searched.segments, j, rows, n, among, taken, k, seed, scratch)
                for h in range(n):
                    if candidates.counts[h] > k:
                        prune_scores(h, k, seed, candidates)
                    found, out = candidates.counts[h], searched.entries[j * group + g + h]
                    for i in range(k):
                        out[i] = candidates.entries[h, i] if i < found else _NO_TOKEN
            j = take(share.ticket)

    return largest_entries_kernel


@jit
def _bits(entries):
    """Of the greatest cost, 1 or more: those of signatures have few."""
    greatest, bits = np.uint64(0), 1
    for entry in entries:
        greatest = max(greatest, entry)
    while bits < 32 and greatest >> np.uint64(32 + bits):  # a shift by 64 is undefined
        bits += 1
    return bits


@kernel
def key_limits_kernel(share: Share, given: Limits, memory: LimitMemory, k: int, seed: int):
    """limits[h] = the k-th smallest key of the n entries of query head h; k < n. within[p, h]: how
    many of process p are up to it."""
    rows, histogram = memory.spare[share.part], memory.histogram[share.part]
    ties, spare, row = rows[0], rows[1], rows[2]
    cuts, n_heads = given.cuts, len(given.limits)
    n, h = cuts[-1], take(share.ticket)
    while h < n_heads:
        for p in range(len(given.within)):
            width = cuts[p + 1] - cuts[p]
            begin = n_heads * cuts[p] + h * width
            for i in range(width):
                row[cuts[p] + i] = given.entries[begin + i]
        tied = 0
        cost, below = kth_cost(row, n, k, _bits(row[:n]), spare, histogram)
        for i in range(n):
            ties[tied] = row[i] & _LOW
            tied += row[i] >> np.uint64(32) == cost
        limit = entry_of(cost, tie_limit(ties, tied, k - below, seed, spare, histogram) & _LOW)
        given.limits[h] = limit
        for p in range(len(given.within)):
            count = 0
            for i in range(cuts[p], cuts[p + 1]):
                count += _key(row[i], seed) <= limit
            given.within[p, h] = count
        h = take(share.ticket)


@jit
def _key(entry, seed):
    """An entry with the hash of its position in the position's place."""
    position = entry & _LOW
    return entry - position + np.uint64(position_hash(position, seed))


@jit
def _mark_range(first, stop, marks):
    for t in range(first, stop):
        marks[t >> 6] |= np.uint64(1) << np.uint64(t & 63)


@kernel
def list_entries_kernel(
    share: Share, arrays: Entries, memory: ListMemory, begin: int, among: Range, seed: int
):
    """Each KV head's list: begin .. first-1, those of first .. last-1 that an entry of one of its
    query heads names whose key is up to the head's limit, last .. stop-1."""
    entries, limits, lists = arrays.entries, arrays.limits, arrays.lists
    first, last = np.uint64(among.first), np.uint64(among.last)
    marks, group = memory.marks[share.part], len(limits) // len(lists.counts)
    j = take(share.ticket)
    while j < len(lists.counts):
        clear(marks, among.stop)
        _mark_range(begin, among.first, marks)
        _mark_range(among.last, among.stop, marks)
        for h in range(j * group, (j + 1) * group):
            limit = limits[h]
            for i in range(entries.shape[1]):
                position, key = entries[h, i] & _LOW, _key(entries[h, i], seed)
                if first <= position < last:
                    word = np.int64(position >> np.uint64(6))
                    marks[word] |= np.uint64(key <= limit) << (position & np.uint64(63))
        lists.counts[j] = write_list(marks, 0, among.stop, among.stop, lists.tokens[j])
        j = take(share.ticket)


@kernel
def surround_kernel(share: Share, arrays: Surrounded, begin: int, among: Range):
    """Each KV head's list: begin .. first-1, the chosen ones, last .. stop-1."""
    chosen, lists = arrays.chosen, arrays.lists
    j = take(share.ticket)
    while j < len(lists.counts):
        n, row = 0, lists.tokens[j]
        for t in range(begin, among.first):
            row[n] = t
            n += 1
        for i in range(chosen.counts[j]):
            row[n] = chosen.tokens[j, i]
            n += 1
        for t in range(among.last, among.stop):
            row[n] = t
            n += 1
        lists.counts[j] = n
        j = take(share.ticket)
