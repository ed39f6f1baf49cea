"""The k nearest signatures of each query, and the union of what a group of queries found.

One pass over the signatures of a KV head. A sample tells about where the k-th distance lies, the
first eighth of the pass (one of eight segments) tells it better; what is nearer than that becomes a
candidate, in a buffer per query that is pruned exactly when it is full and at the end (`best`).
Where too much was promised, another pass takes what lies a little further, so the result is exact
whatever the samples were.
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
from ..sampling import STRIDE, segment_of
from .near import make_tables, near_segment, set_limit, word_at
from .tables import CALL, SCRATCH

_SAMPLE = 4096  # signatures
_RUN = 64  # of them side by side: few pages are touched
_AHEAD = 2  # scans of a segment: what one takes is little longer than memory takes to answer
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
    wanted += 3.0 * np.sqrt(wanted) + 1.0
    limit, seen = 0, 0
    while limit < most and seen < wanted:
        seen += histogram[at + limit]
        limit += 1
    return limit


@jit
def _collect(
    kind, masks, turn, words, item_bytes, segment, queries, least, below, entries, counts
):  # fmt: skip
    """Append the tokens of one segment's masks with distances least .. below-1 to the entries."""
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
            cost = bit_count(word_at(kind, words + t * item_bytes) ^ query)
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
def _make_room(k, seed, item_bytes, limits, below, entries, counts, spare, histogram):
    """Prune what another segment could fill."""
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
    masks, least, below, entries, counts, spare, histogram,
):  # fmt: skip
    """One pass over the signatures first .. last-1 of a KV head; joins entries[h][: counts[h]].

    A segment's masks are looked at when the next one's are made: they have then left the store
    buffer, which could not forward them as the wide words that are read.
    """
    oldest, newest = first // SEGMENT, (last - 1) // SEGMENT
    q, table = np.int64(queries.ctypes.data), np.int64(tables.ctypes.data)
    limit, plane = np.int64(limits.ctypes.data), np.int64(planes.ctypes.data)
    mask, mask_bytes = np.int64(masks.ctypes.data), masks.shape[1] * MASK_BYTES
    groups = (newest - oldest) // stride + 1
    done, turn, scanned, phase, group = -1, 0, 0, 0, 0
    for _ in range(groups * stride + 1):
        segment = -1
        if phase < stride:
            segment = oldest + segment_of(group, stride, phase)
            if segment <= newest:
                ahead = min(oldest + segment_of(group + _AHEAD, stride, phase), newest)
                near_segment(
                    kind, items[segment] + offset, items[ahead] + offset, item_bytes, q, table,
                    limit, plane, mask + turn * mask_bytes,
                )  # fmt: skip
                scanned += min((segment + 1) * SEGMENT, last) - max(segment * SEGMENT, first)
            else:
                segment = -1
        turn = 1 - turn
        if done >= 0:
            if not first <= done * SEGMENT <= last - SEGMENT:
                trim(masks[turn], done, first, last)
            _collect(
                kind, masks, turn, items[done] + offset, item_bytes, done, queries, least, below,
                entries, counts,
            )  # fmt: skip
            if _fullest(counts) + SEGMENT >= entries.shape[1]:
                _make_room(
                    k, seed, item_bytes, limits, below, entries, counts, spare, histogram
                )  # fmt: skip
        done, group = segment, group + 1
        if group == groups:
            phase, group = phase + 1, 0
            if phase == 1 and stride > 1:
                share = scanned / (last - first)
                _lower(share, k, item_bytes, limits, below, entries, counts, histogram)


@jit
def _select_head(
    kind, items, offset, item_bytes, first, last, queries, k, seed, tables, limits, planes, masks,
    least, below, entries, counts, spare, histogram,
):  # fmt: skip
    """entries[h][: k] = the k nearest of the signatures first .. last-1 for each query h."""
    n, bits = len(counts), 8 * item_bytes
    make_tables(queries, bits, tables)
    _first_limits(kind, items, offset, item_bytes, first, last, queries, k, below, histogram)
    for h in range(n):
        set_limit(limits, h, below[h], bits)
        least[h] = counts[h] = 0
    stride, again, more = STRIDE if last - first > 4 * STRIDE * SEGMENT else 1, True, 1
    while again:
        _scan(
            kind, items, offset, item_bytes, first, last, stride, queries, k, seed, tables, limits,
            planes, masks, least, below, entries, counts, spare, histogram,
        )  # fmt: skip
        again, stride = False, 1
        for h in range(n):
            if counts[h] < k:  # the samples promised too much
                least[h], below[h] = below[h], min(_MOST, below[h] + more)
                again = True
            else:
                least[h] = below[h] = 0
            set_limit(limits, h, below[h], bits)
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
        least, below = tally[part, 0, :together], tally[part, 1, :together]
        seen = tally[part, 2, :together]
        j = take(ticket)
        while j < queries.shape[0]:
            clear(marks, stop)
            for g in range(0, queries.shape[1], together):
                _select_head(
                    kind_of(bits, together), items, j * SEGMENT * item_bytes, item_bytes, first,
                    last, queries[j, g : g + together], k, np.uint32(seed), tables[part],
                    limits[part], planes[part], masks[part], least, below, entries, seen,
                    spare[part], histograms[part],
                )  # fmt: skip
                for h in range(together):
                    mark(entries[h], k, marks)
            counts[j] = write_list(marks, first, last, stop, index[j])
            j = take(ticket)

    return kernel
