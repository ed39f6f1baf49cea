"""The sketch index of `topk`: q . k estimated from one bit for each rotated dimension of a key.

    key       y = R (k - c) with a random rotation R; bits sign(y_i); factor |k - c|^2 / sum |y_i|
    estimate  factor * sum of sign(y_i) (R q)_i  ~  q . (k - c)

This is RaBitQ's unbiased estimator (Gao and Long 2024, section 3); the norm of k - c and the
correction are one factor, f16. The centre c of a KV head's keys adds the same to each q . k, which
changes no order. Half bytes of the bits index tables of int8, made for the query, whose entries are
sums of four terms; `queries` says what their rounding costs.

    bits     [token][bits / 8]    bits: see `sketch_bits`
    factors  f16 [token]
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.views import address
from ...attention.layout import SEGMENT
from ..best import entry_of, make_room
from ..masks import WORDS, bits_of, filled_words, hide, low_bit, trim
from ..scores import cost_of, float_bits
from .sums import Sketches, sum_segment


@jit
def _collect(kind, scan, buffer, factors, segment, candidates):
    """Append the tokens of one segment's masks whose estimates reach their query's limit."""
    masks, sums = scan.masks[buffer], scan.sums[buffer]
    limits, entries, counts = candidates.limits, candidates.entries, candidates.counts
    filled = filled_words(kind, address(masks))
    while filled:
        i = low_bit(filled)
        filled &= filled - np.uint64(1)
        h, w = i // WORDS, i % WORDS
        word, n = masks[h, w], counts[h]
        while word:
            t = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            estimate = np.float32(sums[h, t]) * v.load_half(factors, 2 * t)
            cost = cost_of(np.uint64(float_bits(estimate)))
            entries[h, n] = entry_of(cost, segment * SEGMENT + t)
            n += estimate >= limits[h]
        counts[h] = n


@jit
def sketches_at(kind, keys, j, segment):
    """The sketches of KV head j in one segment; keys: `SketchedKeys`."""
    return Sketches(
        keys.bits[segment] + j * SEGMENT * (bits_of(kind) // 8),
        keys.factors[segment] + 2 * j * SEGMENT,
    )


@jit
def scan_segments(kind, query, j, among, wanted, scratch, begin, end):
    """Add the candidates of the segments begin .. end-1 of `search.order` to those of KV head j.

    A segment's masks are read when the next one's have been written, as in the Hamming scan.
    """
    scan, order, keys = scratch.scan, scratch.search.order, query.keys
    candidates, tables = scratch.search.candidates, scratch.search.tables
    for i in range(begin, end + 1):
        buffer = i & 1
        if i < end:
            sketches = sketches_at(kind, keys, j, order[i])
            later = sketches_at(kind, keys, j, order[min(i + 1, end - 1)])
            sum_segment(kind, sketches, later, tables, candidates.limits, scan, buffer)
        if i > begin:
            done = order[i - 1]
            trim(scan.masks[1 - buffer], done, among.first, among.last)
            hide(scan.masks[1 - buffer], done, query.taken[j])
            factors, room = sketches_at(kind, keys, j, done).factors, candidates.entries.shape[1]
            _collect(kind, scan, 1 - buffer, factors, done, candidates)
            for h in range(len(candidates.counts)):
                make_room(h, wanted.n_candidates, wanted.seed, candidates, room)
