"""The k signatures nearest to each query by Hamming distance, and their union over a group.

One scan over the signatures of a KV head. Distances in a sample of 4,096 give a first limit below
which k signatures are likely to lie; after an eighth of the scan (one segment in eight), a quarter
and half of it, the candidates so far give better limits. A token whose cost (`lots`) is below the
limit is a candidate, in a buffer per query that is pruned when it is full and at the end (`best`).
Where a limit was too low for k candidates, another scan collects them again with a higher one:
samples save work, but never change the result.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import store
from ...attention.layout import SEGMENT
from ..best import entry_of, prune, tie_limit
from ..choice import Range
from ..lists import clear, mark, mark_taken, write_list
from ..masks import (
    MASK_BYTES,
    WORDS,
    bit_count,
    bits_of,
    filled_words,
    hide,
    kind_of,
    low_bit,
    trim,
)
from ..prefetch import find_pages
from ..sampling import STRIDE, likely_count, put_order
from .arguments import Head, Query, Scratch, Tally
from .lots import COST_LIMIT, key_of, lot, lots_of
from .near import LOOKUP, make_tables, near_segment, set_limit, word_at

_SAMPLE = 4096  # signatures
_RUN = 64  # neighbouring signatures of the sample, so that it touches few pages
_LATER = 2  # segments from scan to prefetch: scanning one takes little longer than memory's latency
_PAGES = 8  # segments whose pages are found together
_DISTANCE_LIMIT = 65  # more than any distance
_ROW = 144  # of a histogram of costs
_LANES = 4  # counters of each cost
_LOW = np.uint64(0xFFFFFFFF)


@jit
def tally_of(rows, together):
    """The limits and counts of the queries of a pass; rows: a thread's `tally`."""
    return Tally(rows[0, :together], rows[1, :together])


@jit
def _first_limits(kind, head, queries, below, histogram):
    """Set limits below which k signatures are likely to lie, and few more, from a sample."""
    first, last = head.among.first, head.among.last
    runs = min(_SAMPLE, (last - first) // 8) // _RUN
    if runs == 0:
        below[:] = COST_LIMIT
        return
    for i in range(_ROW * len(queries)):
        histogram[i] = 0
    item_bytes = bits_of(kind) // 8
    step = (last - first - _RUN) // max(1, runs - 1)
    for run in range(runs):
        for t in range(first + run * step, first + run * step + _RUN):
            place = head.items[t // SEGMENT] + head.offset + t % SEGMENT * item_bytes
            word = word_at(kind, place)
            for h in range(len(queries)):
                histogram[_ROW * h + bit_count(word ^ queries[h])] += 1
    share = runs * _RUN / (last - first)
    for h in range(len(queries)):
        limit = _likely_limit(histogram, _ROW * h, _DISTANCE_LIMIT, head.k, share)
        below[h] = min(lots_of(kind) * limit, COST_LIMIT)


@jit
def _likely_limit(histogram, at, most, k, share):
    """Return the limit, at most `most`, below which k of all signatures are likely to lie.

    histogram[at + i]: how many of a `share` of the signatures are at distance or cost i.
    """
    limit, seen, wanted = 0, 0, likely_count(k, share)
    while limit < most and seen < wanted:
        seen += histogram[at + limit]
        limit += 1
    return limit


@jit
def _collect(kind, buffer, words, segment, key, queries, tally, scratch):
    """Append the tokens in one segment's masks to the candidates."""
    masks, line = scratch.masks, scratch.entries.strides[0]
    lots, item_bytes = lots_of(kind), bits_of(kind) // 8
    filled = filled_words(kind, address(masks) + buffer * masks.shape[1] * MASK_BYTES)
    while filled:
        i = low_bit(filled)
        filled &= filled - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n, query, limit = masks[buffer, h, w], tally.counts[h], queries[h], tally.below[h]
        to = address(scratch.entries) + h * line
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            d = bit_count(word_at(kind, words + t * item_bytes) ^ query)
            cost = lots * d + lot(lots, key, t)
            store(to, 8 * n, entry_of(cost, segment * SEGMENT + t))
            n += 1 if not LOOKUP else cost < limit  # where masks have a few others, too
        tally.counts[h] = n


@jit
def make_room(kind, k, seed, tally, scratch):
    """Prune the candidates of queries whose buffer another segment could fill."""
    spare = scratch.spare
    for h in range(len(tally.counts)):
        entries, n = scratch.entries[h], tally.counts[h]
        if n + SEGMENT >= len(entries):
            worst = prune(entries, n, k, 8, seed, spare[0], spare[1], scratch.histogram)
            tally.counts[h], tally.below[h] = k, np.int64(worst) + 1
            set_limit(kind, scratch.limits, h, tally.below[h])


@jit
def _count_costs(entries, n, histogram):
    """histogram[cost] = how many of n candidates have it."""
    for i in range(_LANES * _ROW):
        histogram[i] = 0
    for i in range(n):  # neighbours' counters differ: their costs are mostly equal
        histogram[(i & (_LANES - 1)) * _ROW + np.int64(entries[i] >> np.uint64(32))] += 1
    for i in range(_ROW, _LANES * _ROW):
        histogram[i % _ROW] += histogram[i]


@jit
def lower(kind, share, k, tally, scratch):
    """Set limits by the candidates among `share` of the signatures; drop those at or above them."""
    histogram, entries = scratch.histogram, scratch.entries
    counts, below = tally.counts, tally.below
    for h in range(len(counts)):
        _count_costs(entries[h], counts[h], histogram)
        below[h] = _likely_limit(histogram, 0, below[h], k, share)
        set_limit(kind, scratch.limits, h, below[h])
        kept = 0
        for i in range(counts[h]):
            entries[h, kept] = entries[h, i]
            kept += np.int64(entries[h, i] >> np.uint64(32)) < below[h]
        counts[h] = kept


@jit
def _scan(kind, head, n, due, queries, tally, scratch):
    """Scan the signatures of a range, and add their candidates.

    scratch.order[:n]: their segments. After `due` of them, twice as many, …, new limits are set.
    A segment's masks are read when the next one's have been written: they have then left the store
    buffer, which cannot forward them to the wider loads that read them.
    """
    first, last, order = head.among.first, head.among.last, scratch.order
    items, offset, k, seed = head.items, head.offset, head.k, head.seed
    q, table, plane = address(queries), address(scratch.tables), address(scratch.planes)
    limit, masks = address(scratch.limits), scratch.masks
    mask, mask_bytes = address(masks), masks.shape[1] * MASK_BYTES
    scanned = 0
    for i in range(n + 1):
        buffer = i & 1
        if i % _PAGES == 0:
            find_pages(items, offset, order[i + _PAGES : min(i + 2 * _PAGES, n)])
        if i < n:
            segment, later = order[i], order[min(i + _LATER, n - 1)]
            key = np.uint64(key_of(segment, seed))
            near_segment(
                kind, items[segment] + offset, items[later] + offset, key, q, table, limit, plane,
                mask + buffer * mask_bytes,
            )  # fmt: skip
        if i == 0:
            continue
        done = order[i - 1]
        if not first <= done * SEGMENT <= last - SEGMENT:
            trim(masks[1 - buffer], done, first, last)
        hide(masks[1 - buffer], done, head.taken)
        key_of_done = np.int64(key_of(done, seed))
        words = items[done] + offset
        _collect(kind, 1 - buffer, words, done, key_of_done, queries, tally, scratch)
        make_room(kind, k, seed, tally, scratch)
        scanned += min((done + 1) * SEGMENT, last) - max(done * SEGMENT, first)
        if i == due and i < n:
            due *= 2
            lower(kind, scanned / (last - first), k, tally, scratch)


@jit
def put_segments(among, order):
    """Write the segments of a range in their order; returns n and due as `mark_nearest` takes."""
    stride = STRIDE if among.last - among.first > 4 * STRIDE * SEGMENT else 1
    return put_order(among.first, among.last, stride, order)


@jit
def find_nearest(kind, head, n, due, queries, tally, scratch):
    """Find k candidates or more for each query, among them the k nearest of a range.

    scratch.order[:n]: the segments. After `due` of them limits are set anew.
    """
    below, counts = tally.below, tally.counts
    make_tables(queries, bits_of(kind), scratch.tables)
    _first_limits(kind, head, queries, below, scratch.histogram)
    for h in range(len(counts)):
        set_limit(kind, scratch.limits, h, below[h])
        counts[h] = 0
    _scan(kind, head, n, due, queries, tally, scratch)
    _find_more(kind, head, n, queries, tally, scratch)


@jit
def _find_more(kind, head, n, queries, tally, scratch):
    """Scan again, where there are too few candidates."""
    more = lots_of(kind)
    while _raise_limits(kind, head.k, more, tally, scratch):
        _scan(kind, head, n, 0, queries, tally, scratch)
        more *= 2


@jit
def mark_nearest(kind, head, n, due, queries, tally, scratch):
    """Mark the k nearest of the signatures of a range to each query; see `find_nearest`."""
    find_nearest(kind, head, n, due, queries, tally, scratch)
    _mark(head, tally, scratch)


@jit
def complete(kind, head, n, queries, tally, scratch):
    """Mark the k nearest to each query: scan again where there are too few candidates."""
    _find_more(kind, head, n, queries, tally, scratch)
    _mark(head, tally, scratch)


@jit
def _mark(head, tally, scratch):
    for h in range(len(tally.counts)):
        _mark_cheapest(scratch.entries[h], tally.counts[h], head.k, head.seed, scratch)


@jit
def _mark_cheapest(entries, n, k, seed, scratch):
    """Mark the k best of n >= k candidates, as `best.prune` chooses them."""
    histogram, marks, ties, limit, below = scratch.histogram, scratch.marks, scratch.spare[0], 0, 0
    tied = 0
    _count_costs(entries, n, histogram)
    while below + histogram[limit] < k:
        below += histogram[limit]
        limit += 1
    for i in range(n):  # without branches, which no CPU could predict here
        entry = entries[i]
        cost, position = np.int64(entry >> np.uint64(32)), entry & _LOW
        ties[tied] = position
        tied += cost == limit
        word = np.int64(position >> np.uint64(6))
        marks[word] |= np.uint64(cost < limit) << (position & np.uint64(63))
    last_hash = tie_limit(ties, tied, k - below, seed, scratch.spare[1], histogram)
    for i in range(tied):
        if ties[i] >> np.uint64(32) <= last_hash:
            mark(ties[i : i + 1], 1, marks)


@jit
def _raise_limits(kind, k, more, tally, scratch):
    """Raise the limits of queries with fewer than k candidates by `more`, to scan again.

    Returns whether there are any. The other queries look for nothing.
    """
    below, counts, again = tally.below, tally.counts, False
    for h in range(len(counts)):
        if counts[h] < k:
            counts[h], below[h] = 0, min(COST_LIMIT, below[h] + more)
            again = True
        else:
            below[h] = 0
        set_limit(kind, scratch.limits, h, below[h])
    return again


def make_hamming(bits, together):
    """The kernel for signatures of `bits` bits, `together` queries of a group at a time."""

    @kernel
    def hamming_kernel(
        share: Share, query: Query, memory: Scratch, among: Range, k: int, seed: int
    ):
        """Each KV head's list: tokens 0 .. first-1, the k of first .. last-1 nearest to each of its
        queries, last .. stop-1.

        For every `together` queries reads bits / 8 bytes a token and KV head.
        """
        signatures, lists, scratch = query.signatures, query.lists, of_thread(memory, share.part)
        tally, marks = tally_of(scratch.tally, together), scratch.marks
        n, due = put_segments(among, scratch.order)
        j = take(share.ticket)
        while j < signatures.shape[0]:
            offset, taken = j * SEGMENT * (bits // 8), query.taken[j]
            head = Head(query.items, offset, among, taken, k, seed)
            clear(marks, among.stop)
            for g in range(0, signatures.shape[1], together):
                queries = signatures[j, g : g + together]
                mark_nearest(kind_of(bits, together), head, n, due, queries, tally, scratch)
            mark_taken(taken, among.stop, marks)
            lists.counts[j] = write_list(
                marks, among.first, among.last, among.stop, lists.tokens[j]
            )
            j = take(share.ticket)

    return hamming_kernel
