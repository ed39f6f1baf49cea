"""The k nearest signatures of each query, and the union of what a group of queries found.

One pass over the signatures of a KV head. A sample tells about where the k-th distance lies, the
first eighth of the pass (every eighth segment) tells it better; what is nearer than that becomes a
candidate, in a buffer per query that is pruned exactly when it is full and at the end (`best`).
Where too much was promised the pass is repeated with more, so the result is exact whatever the
samples were.
"""

import numpy as np

from ...attention.layout import SEGMENT
from ...cache import jit
from ...steps.define import step
from ...steps.lent import lent
from ...steps.words import take
from ..best import prune
from ..lists import clear, mark, write_list
from ..masks import MASK_BYTES, WORDS, bit_count, filled_words, kind_of, low_bit, trim
from .near import make_tables, near_segment, set_limit, word_at
from .tables import CALL, SCRATCH

_SAMPLE = 4096  # signatures
_RUN = 64  # of them side by side: few pages are touched
_AHEAD = 2  # segments: what one takes is little longer than memory takes to answer
_STRIDE = 8  # of the segments that are scanned first
_MOST = 65  # no distance reaches it
_ROW = 80  # of a histogram of distances


@jit
def _first_limits(kind, items, offset, item_bytes, first, last, queries, k, below, histogram):
    """Distances that likely have k signatures below them, and not many more, from a sample."""
    runs = min(_SAMPLE, (last - first) // 8) // _RUN
    if runs == 0:
        below[:] = _MOST
        return
    for i in range(_ROW * len(queries)):
        histogram[i] = 0
    step = (last - first - _RUN) // max(1, runs - 1)
    for run in range(runs):
        for t in range(first + run * step, first + run * step + _RUN):
            word = word_at(kind, items[t // SEGMENT] + offset + t % SEGMENT * item_bytes)
            for h in range(len(queries)):
                histogram[_ROW * h + bit_count(word ^ queries[h])] += 1
    for h in range(len(queries)):
        below[h] = _least(histogram, _ROW * h, _MOST, k, runs * _RUN / (last - first))


@jit
def _least(histogram, at, most, k, share):
    """The limit, `most` or below, that `share` of the signatures say has k of all below it.

    They are counted by distance from histogram[at] on.
    """
    wanted = k * share
    wanted += 2.0 * np.sqrt(wanted) + 1.0
    limit, seen = 0, 0
    while limit < most and seen < wanted:
        seen += histogram[at + limit]
        limit += 1
    return limit


@jit
def _collect(
    kind, masks, turn, words, item_bytes, segment, queries, below, entries, counts
):  # fmt: skip
    """Append the tokens of one segment's masks that are nearer than `below` to the entries."""
    some = filled_words(kind, np.int64(masks.ctypes.data) + turn * masks.shape[1] * MASK_BYTES)
    while some:
        i = low_bit(some)
        some &= some - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n, query, limit = masks[turn, h, w], counts[h], queries[h], below[h]
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            cost = bit_count(word_at(kind, words + t * item_bytes) ^ query)
            entries[h, n] = (np.uint64(cost) << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
            n += cost < limit
        counts[h] = n


@jit
def _take(
    kind, masks, turn, words, item_bytes, segment, first, last, queries, k, seed, limits, below,
    entries, counts, spare, histogram,
):  # fmt: skip
    """What the masks of one segment hold joins the entries."""
    if first > segment * SEGMENT or last < (segment + 1) * SEGMENT:
        trim(masks[turn], segment, first, last)
    _collect(kind, masks, turn, words, item_bytes, segment, queries, below, entries, counts)
    for h in range(len(counts)):
        if counts[h] + SEGMENT >= entries.shape[1]:
            worst = prune(entries[h], counts[h], k, 8, seed, spare[0], spare[1], histogram)
            counts[h], below[h] = k, np.int64(worst) + 1
            set_limit(limits, h, below[h], 8 * item_bytes)


@jit
def _lower(share, k, item_bytes, limits, below, entries, counts, histogram):
    """Limits as the entries say that `share` of the signatures gave."""
    for h in range(len(counts)):
        for i in range(_ROW):
            histogram[i] = 0
        for i in range(counts[h]):
            histogram[np.int64(entries[h, i] >> np.uint64(32))] += 1
        below[h] = _least(histogram, 0, below[h], k, share)
        set_limit(limits, h, below[h], 8 * item_bytes)


@jit
def _scan(
    kind, items, offset, item_bytes, first, last, stride, queries, k, seed, tables, limits, planes,
    masks, below, entries, counts, spare, histogram,
):  # fmt: skip
    """One pass over the signatures first .. last-1 of a KV head; entries[h][: counts[h]].

    A segment's masks are looked at when the next one's are made: they have then left the store
    buffer, which could not forward them as the wide words that are read.
    """
    oldest, newest = first // SEGMENT, (last - 1) // SEGMENT
    q, table = np.int64(queries.ctypes.data), np.int64(tables.ctypes.data)
    limit, plane = np.int64(limits.ctypes.data), np.int64(planes.ctypes.data)
    mask, mask_bytes = np.int64(masks.ctypes.data), masks.shape[1] * MASK_BYTES
    done, turn = -1, 0
    for phase in range(stride):
        for segment in range(oldest + phase, newest + 1, stride):
            near_segment(
                kind, items[segment] + offset,
                items[min(segment + _AHEAD * stride, newest)] + offset, item_bytes, q, table, limit,
                plane, mask + turn * mask_bytes,
            )  # fmt: skip
            turn = 1 - turn
            if done >= 0:
                _take(
                    kind, masks, turn, items[done] + offset, item_bytes, done, first, last,
                    queries, k, seed, limits, below, entries, counts, spare, histogram,
                )  # fmt: skip
            done = segment
        if phase == 0 and stride > 1:
            _lower(1.0 / stride, k, item_bytes, limits, below, entries, counts, histogram)
    _take(
        kind, masks, 1 - turn, items[done] + offset, item_bytes, done, first, last, queries, k,
        seed, limits, below, entries, counts, spare, histogram,
    )  # fmt: skip


@jit
def _select_head(
    kind, items, offset, item_bytes, first, last, queries, k, seed, tables, limits, planes, masks,
    below, entries, counts, spare, histogram,
):  # fmt: skip
    """entries[h][: k] = the k nearest of the signatures first .. last-1 for each query h."""
    n = len(counts)
    make_tables(queries, 8 * item_bytes, tables)
    _first_limits(kind, items, offset, item_bytes, first, last, queries, k, below, histogram)
    stride = _STRIDE if last - first > 4 * _STRIDE * SEGMENT else 1
    again, more = True, 1
    while again:
        for h in range(n):
            set_limit(limits, h, below[h], 8 * item_bytes)
            counts[h] = 0
        _scan(
            kind, items, offset, item_bytes, first, last, stride, queries, k, seed, tables, limits,
            planes, masks, below, entries, counts, spare, histogram,
        )  # fmt: skip
        again, stride = False, 1
        for h in range(n):
            if counts[h] < k:  # the samples promised too much
                below[h] = min(_MOST, below[h] + more)
                again = True
        more *= 2
    for h in range(n):
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
            tables, limits, planes, masks, tally, all_entries, spare, all_marks, histograms
        ) = lent(scratch, SCRATCH)  # fmt: skip
        entries, marks, item_bytes = all_entries[part], all_marks[part], bits // 8
        below, seen = tally[part, 0, :together], tally[part, 1, :together]
        j = take(ticket)
        while j < queries.shape[0]:
            clear(marks, stop)
            for g in range(0, queries.shape[1], together):
                _select_head(
                    kind_of(bits, together), items, j * SEGMENT * item_bytes, item_bytes, first,
                    last, queries[j, g : g + together], k, np.uint32(seed), tables[part],
                    limits[part], planes[part], masks[part], below, entries, seen, spare[part],
                    histograms[part],
                )  # fmt: skip
                for h in range(together):
                    mark(entries[h], k, marks)
            counts[j] = write_list(marks, first, last, stop, index[j])
            j = take(ticket)

    return kernel
