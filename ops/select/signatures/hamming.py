"""The k nearest signatures of each query, and the union of what a group of queries found.

One pass over the signatures of a KV head. A sample tells about where the k-th distance lies, the
first eighth of the pass (one of eight segments) tells it better, then a quarter and half of it.
What costs less than that (`lots`) becomes a candidate, in a buffer per query that is pruned exactly
when it is full and at the end (`best`). Where too much was promised, another pass takes what lies a
little further, so the result is exact whatever the samples were.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import step
from ....jit.launch.views import lent
from ...attention.layout import SEGMENT
from ..best import prune
from ..lists import clear, mark, write_list
from ..masks import MASK_BYTES, WORDS, bit_count, bits_of, filled_words, kind_of, low_bit, trim
from ..sampling import STRIDE, put_order
from .lots import MOST, key_of, lot, lots_of
from .near import ask_for_last, make_tables, near_segment, set_limit, word_at
from .tables import CALL, SCRATCH

_SAMPLE = 4096  # signatures
_RUN = 64  # of them side by side: few pages are touched
_AHEAD = 2  # scans of a segment: what one takes is little longer than memory takes to answer
_FARTHEST = 65  # no distance reaches it
_ROW = 144  # of a histogram of costs


@jit
def _first_limits(kind, items, offset, first, last, queries, k, below, histogram):
    """Costs that likely have k signatures below them, and not many more, from a sample."""
    runs = min(_SAMPLE, (last - first) // 8) // _RUN
    if runs == 0:
        below[:] = MOST
        return
    for i in range(_ROW * len(queries)):
        histogram[i] = 0
    item_bytes = bits_of(kind) // 8
    step = (last - first - _RUN) // max(1, runs - 1)
    for run in range(runs):
        for t in range(first + run * step, first + run * step + _RUN):
            word = word_at(kind, items[t // SEGMENT] + offset + t % SEGMENT * item_bytes)
            for h in range(len(queries)):
                histogram[_ROW * h + bit_count(word ^ queries[h])] += 1
    for h in range(len(queries)):
        limit = _least(histogram, _ROW * h, _FARTHEST, k, runs * _RUN / (last - first))
        below[h] = min(lots_of(kind) * limit, MOST)


@jit
def _least(histogram, at, most, k, share):
    """The limit, `most` or below, that `share` of the signatures say has k of all below it.

    They are counted by distance or cost from histogram[at] on.
    """
    wanted = k * share
    wanted += 3.0 * np.sqrt(wanted) + 1.0
    limit, seen = 0, 0
    while limit < most and seen < wanted:
        seen += histogram[at + limit]
        limit += 1
    return limit


@jit
def _collect(
    kind, masks, turn, words, segment, key, queries, least, below, entries, counts
):  # fmt: skip
    """Append the tokens of one segment's masks that cost least .. below-1 to the entries."""
    lots, item_bytes = lots_of(kind), bits_of(kind) // 8
    some = filled_words(kind, np.int64(masks.ctypes.data) + turn * masks.shape[1] * MASK_BYTES)
    while some:
        i = low_bit(some)
        some &= some - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n, query = masks[turn, h, w], counts[h], queries[h]
        nearest, limit = least[h], below[h]
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            d = bit_count(word_at(kind, words + t * item_bytes) ^ query)
            cost = lots * d + lot(lots, key, t)
            entries[h, n] = (np.uint64(cost) << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
            n += nearest <= cost < limit
        counts[h] = n


@jit
def _fullest(counts):
    """The largest of them."""
    most = counts[0]
    for h in range(1, len(counts)):
        most = max(most, counts[h])
    return most


@jit
def _make_room(k, seed, limits, below, entries, counts, spare, histogram):
    """Prune what another segment could fill."""
    for h in range(len(counts)):
        if counts[h] + SEGMENT >= entries.shape[1]:
            worst = prune(entries[h], counts[h], k, 8, seed, spare[0], spare[1], histogram)
            counts[h], below[h] = k, np.int64(worst) + 1
            set_limit(limits, h, below[h])


@jit
def _lower(share, k, limits, below, entries, counts, histogram):
    """Limits as the entries say that `share` of the signatures gave; keeps what is below them."""
    for h in range(len(counts)):
        for i in range(_ROW):
            histogram[i] = 0
        for i in range(counts[h]):
            histogram[np.int64(entries[h, i] >> np.uint64(32))] += 1
        below[h] = _least(histogram, 0, below[h], k, share)
        set_limit(limits, h, below[h])
        kept = 0
        for i in range(counts[h]):
            entries[h, kept] = entries[h, i]
            kept += np.int64(entries[h, i] >> np.uint64(32)) < below[h]
        counts[h] = kept


@jit
def _scan(
    kind, items, offset, first, last, order, n, due, queries, k, seed, tables, limits, planes,
    masks, least, below, entries, counts, spare, histogram,
):  # fmt: skip
    """Scan the signatures first .. last-1 of a KV head; joins entries[h][: counts[h]].

    order[:n]: their segments. After `due` of them, twice as many, ..., limits are set anew.
    A segment's masks are looked at when the next one's are made: they have then left the store
    buffer, which could not forward them as the wide words that are read.
    """
    q, table = np.int64(queries.ctypes.data), np.int64(tables.ctypes.data)
    limit, plane = np.int64(limits.ctypes.data), np.int64(planes.ctypes.data)
    mask, mask_bytes = np.int64(masks.ctypes.data), masks.shape[1] * MASK_BYTES
    scanned = 0
    for i in range(n + 1):
        turn = i & 1
        if i < n:
            segment, ahead = order[i], order[min(i + _AHEAD, n - 1)]
            near_segment(
                kind, items[segment] + offset, items[ahead] + offset,
                np.uint64(key_of(segment, seed)), q, table, limit, plane, mask + turn * mask_bytes,
            )  # fmt: skip
            ask_for_last(kind, items[ahead] + offset)
        if i == 0:
            continue
        done = order[i - 1]
        if not first <= done * SEGMENT <= last - SEGMENT:
            trim(masks[1 - turn], done, first, last)
        _collect(
            kind, masks, 1 - turn, items[done] + offset, done, np.int64(key_of(done, seed)),
            queries, least, below, entries, counts,
        )  # fmt: skip
        if _fullest(counts) + SEGMENT >= entries.shape[1]:
            _make_room(k, seed, limits, below, entries, counts, spare, histogram)
        scanned += min((done + 1) * SEGMENT, last) - max(done * SEGMENT, first)
        if i == due and i < n:
            due *= 2
            _lower(scanned / (last - first), k, limits, below, entries, counts, histogram)


@jit
def _select_head(
    kind, items, offset, first, last, order, n, due, queries, k, seed, tables, limits, planes,
    masks, least, below, entries, counts, spare, histogram,
):  # fmt: skip
    """entries[h][: k] = the k nearest of the signatures first .. last-1 for each query h."""
    make_tables(queries, bits_of(kind), tables)
    _first_limits(kind, items, offset, first, last, queries, k, below, histogram)
    for h in range(len(counts)):
        set_limit(limits, h, below[h])
        least[h] = counts[h] = 0
    again, more = True, lots_of(kind)
    while again:
        _scan(
            kind, items, offset, first, last, order, n, due, queries, k, seed, tables, limits,
            planes, masks, least, below, entries, counts, spare, histogram,
        )  # fmt: skip
        again, due = False, 0
        for h in range(len(counts)):
            if counts[h] < k:  # the samples promised too much
                least[h], below[h] = below[h], min(MOST, below[h] + more)
                again = True
            else:
                least[h] = below[h] = 0
            set_limit(limits, h, below[h])
        more *= 2
    for h in range(len(counts)):
        if counts[h] > k:
            prune(entries[h], counts[h], k, 8, seed, spare[0], spare[1], histogram)


def make_hamming(bits, together):
    """The kernel for signatures of `bits` bits and `together` queries of a group at a time."""

    @step("iiiiiii")
    def kernel(part, parts, ticket, call, scratch, first, last, stop, k, seed):
        """queries uint64[J, G]; items: addresses of the column's segments; k of first .. last-1.

        index uint32[J, room], counts int64[J]: tokens 0 .. first-1, the union of all queries'
        choices, last .. stop-1. Scratch as SignatureScratch has it. Reads bits / 8 bytes a token
        and KV head for every `together` queries.
        """
        queries, items, index, counts = lent(call, CALL)
        (
            tables, limits, planes, masks, tally, orders, all_entries, spare, all_marks, histograms,
        ) = lent(scratch, SCRATCH)  # fmt: skip
        entries, marks = all_entries[part], all_marks[part]
        least, below = tally[part, 0, :together], tally[part, 1, :together]
        seen, order = tally[part, 2, :together], orders[part]
        stride = STRIDE if last - first > 4 * STRIDE * SEGMENT else 1
        n, due = put_order(first, last, stride, order)
        j = take(ticket)
        while j < queries.shape[0]:
            clear(marks, stop)
            for g in range(0, queries.shape[1], together):
                _select_head(
                    kind_of(bits, together), items, j * SEGMENT * (bits // 8), first, last, order,
                    n, due, queries[j, g : g + together], k, np.uint32(seed), tables[part],
                    limits[part], planes[part], masks[part], least, below, entries, seen,
                    spare[part], histograms[part],
                )  # fmt: skip
                for h in range(together):
                    mark(entries[h], k, marks)
            counts[j] = write_list(marks, first, last, stop, index[j])
            j = take(ticket)

    return kernel
