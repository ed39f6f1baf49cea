"""The k nearest signatures of each query, and the union of what a group of queries found.

One pass over the signatures of a KV head. A sample tells about where the k-th distance lies;
what is nearer than that becomes a candidate, in a buffer per query that is pruned exactly when it
is full and at the end (`best`). Where the sample promised too much the pass is repeated without
a limit, so the result is exact whatever the sample was.
"""

import numpy as np
from numba import prange

from ..attention.layout import SEGMENT
from ..cache import jit
from ..simd import prefetch_l1, set_i8, store
from .best import prune
from .lists import clear, mark, write_list
from .near import (
    WORDS,
    bit_count,
    filled_words,
    kind_of,
    low_bit,
    make_tables,
    near_64,
    trim,
    word_at,
)

_SAMPLE = 16_384  # signatures
_RUN = 16  # of them side by side: one or two cache lines


@jit
def _first_limit(kind, items, offset, item_bytes, first, last, query, k, histogram):
    """A distance that likely has k signatures below it, and not many more, from a sample."""
    for i in range(66):
        histogram[i] = 0
    runs = min(_SAMPLE, (last - first) // 8) // _RUN
    if runs == 0:
        return 65
    step = (last - first - _RUN) // max(1, runs - 1)
    for run in range(runs):
        for t in range(first + run * step, first + run * step + _RUN):
            place = items[t // SEGMENT] + offset + t % SEGMENT * item_bytes
            histogram[bit_count(word_at(kind, place) ^ query)] += 1
    wanted = k * runs * _RUN / (last - first)
    wanted += 2.0 * np.sqrt(wanted) + 1.0
    limit, seen = 0, 0
    while limit < 65 and seen < wanted:
        seen += histogram[limit]
        limit += 1
    return limit


@jit
def _set_limit(limits, h, limit):
    store(limits, 64 * h, set_i8(limit))


@jit
def _collect(kind, masks, words, item_bytes, segment, queries, entries, counts):
    """Append the tokens of one segment's masks to the entries of their queries."""
    some = filled_words(kind, masks.ctypes.data)
    while some:
        i = low_bit(some)
        some &= some - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n = masks[h, w], counts[h]
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            cost = bit_count(word_at(kind, words + t * item_bytes) ^ queries[h])
            entries[h, n] = (np.uint64(cost) << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
            n += 1
        counts[h] = n


@jit
def _scan(
    kind, items, offset, item_bytes, first, last, queries, k, seed, tables, limits, masks,
    entries, counts, spare, histogram,
):  # fmt: skip
    """One pass over the signatures first .. last-1 of a KV head; entries[h][: counts[h]].

    A segment's masks are looked at when the next one's are made: they have then left the store
    buffer, which could not forward them as the wide words that are read.
    """
    oldest, newest = first // SEGMENT, (last - 1) // SEGMENT
    for segment in range(oldest, newest + 2):
        if segment <= newest:
            words, ahead = items[segment] + offset, items[min(segment + 1, newest)] + offset
            for w in range(WORDS):
                for line in range(0, 64 * item_bytes, 64):  # hardware stops at the end of a page
                    prefetch_l1(ahead, 64 * w * item_bytes + line)
                near_64(
                    kind, words + 64 * w * item_bytes, queries.ctypes.data, tables.ctypes.data,
                    limits.ctypes.data, masks[segment % 2].ctypes.data + 8 * w,
                )  # fmt: skip
        if segment > oldest:
            done = segment - 1
            trim(masks[done % 2], done, first, last)
            _collect(
                kind, masks[done % 2], items[done] + offset, item_bytes, done, queries, entries,
                counts,
            )  # fmt: skip
            for h in range(len(counts)):
                if counts[h] + SEGMENT > entries.shape[1]:
                    worst = prune(
                        entries[h], counts[h], k, 8, seed, spare[0], spare[1], histogram
                    )  # fmt: skip
                    counts[h] = k
                    _set_limit(limits, h, np.int64(worst) + 1)


@jit
def _select_head(
    kind, items, offset, item_bytes, first, last, queries, k, seed, tables, limits, masks,
    entries, counts, spare, histogram,
):  # fmt: skip
    """entries[h][: k] = the k nearest of the signatures first .. last-1 for each query h."""
    n = len(counts)
    for h in range(n):
        make_tables(queries[h], 8 * item_bytes, tables[h])
        limit = _first_limit(
            kind, items, offset, item_bytes, first, last, queries[h], k, histogram
        )  # fmt: skip
        _set_limit(limits, h, limit)
    again = True
    while again:
        for h in range(n):
            counts[h] = 0
        _scan(
            kind, items, offset, item_bytes, first, last, queries, k, seed, tables, limits, masks,
            entries, counts, spare, histogram,
        )  # fmt: skip
        again = False
        for h in range(n):
            if counts[h] < k:  # the sample promised too much
                _set_limit(limits, h, 65)
                again = True
    for h in range(n):
        if counts[h] > k:
            prune(entries[h], counts[h], k, 8, seed, spare[0], spare[1], histogram)


@jit
def _heads(
    kind, together, item_bytes, queries, items, first, last, stop, k, seed, index, counts, tables,
    limits, masks, entries, seen, spare, marks, histogram, begin, end,
):  # fmt: skip
    """The lists of the KV heads begin .. end-1, with the scratch of one thread."""
    for j in range(begin, end):
        clear(marks, stop)
        for g in range(0, queries.shape[1], together):
            _select_head(
                kind, items, j * SEGMENT * item_bytes, item_bytes, first, last,
                queries[j, g : g + together], k, seed, tables, limits, masks, entries, seen, spare,
                histogram,
            )  # fmt: skip
            for h in range(together):
                mark(entries[h], k, marks)
        counts[j] = write_list(marks, first, last, stop, index[j])


def make_hamming(bits, together):
    """The kernel for signatures of `bits` bits and `together` queries of a group at a time."""

    @jit(parallel=True)
    def hamming_kernel(
        queries, items, first, last, stop, k, seed, index, counts, tables, limits, masks, entries,
        seen, spare, marks, histograms, threads,
    ):  # fmt: skip
        """queries uint64[J, G]; items: addresses of the column's segments; k of first .. last-1.

        index uint32[J, room], counts int64[J]: tokens 0 .. first-1, the union of all queries'
        choices, last .. stop-1. Scratch of each thread as SelectScratch has it. Reads bits / 8
        bytes a token and KV head for every `together` queries.
        """
        n_kv_heads = queries.shape[0]
        if threads == 1:
            _heads(
                kind_of(bits, together), together, bits // 8, queries, items, first, last, stop, k,
                seed, index, counts, tables[0], limits[0], masks[0], entries[0], seen[0], spare[0],
                marks[0], histograms[0], 0, n_kv_heads,
            )  # fmt: skip
        else:
            for part in prange(threads):
                _heads(
                    kind_of(bits, together), together, bits // 8, queries, items, first, last,
                    stop, k, seed, index, counts, tables[part], limits[part], masks[part],
                    entries[part], seen[part], spare[part], marks[part], histograms[part],
                    n_kv_heads * part // threads, n_kv_heads * (part + 1) // threads,
                )  # fmt: skip

    return hamming_kernel
