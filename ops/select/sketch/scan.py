"""The sketch index of `topk`: q . k estimated from one bit for each rotated dimension of a key.

    key       y = R (k - c) with a random rotation R; bits sign(y_i); factor |k - c|^2 / sum |y_i|
    estimate  factor * sum of sign(y_i) (R q)_i  ~  q . (k - c)

This is RaBitQ's unbiased estimator (Gao and Long 2024, section 3); the norm of k - c and the
correction are one factor, f16. The centre c of a KV head's keys adds the same to each q . k, which
changes no order. Half bytes of the bits index tables of int8, made for the query, whose entries are
sums of four terms; `queries` says what their rounding costs.

    bits     [token][bits / 8]    head_dim up to 64, 128 or 256 bits
    factors  f16 [token]
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention.layout import SEGMENT
from ...attention.shape import shape_of
from ..best import entry_of, make_room
from ..choice import Range
from ..masks import WORDS, bits_of, filled_words, hide, kind_of, low_bit, trim
from ..queries import prepare_query
from ..rerank.arguments import Wanted
from ..scores import cost_of, float_bits
from .arguments import Query, Scratch
from .choose import make_choose
from .sums import Sketches, sum_segment


@jit
def _collect(kind, scan, buffer, factors, segment, found):
    """Append the tokens of one segment's masks whose estimates reach their query's limit."""
    masks, sums = scan.masks[buffer], scan.sums[buffer]
    limits, entries, counts = found.limits, found.entries, found.counts
    some = filled_words(kind, address(masks))
    while some:
        i = low_bit(some)
        some &= some - np.uint64(1)
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
def _head_of(kind, query, segment, j):
    """The sketches of one KV head in one segment."""
    return Sketches(
        query.bits[segment] + j * SEGMENT * (bits_of(kind) // 8),
        query.factors[segment] + 2 * j * SEGMENT,
    )


@jit
def _scan(kind, query, j, among, wanted, mine, begin, end):
    """Add the segments begin .. end-1 of the order to the candidates, see `make_choose`.

    A segment's masks are read when the next one's have been written, as in the Hamming scan.
    """
    scan, found, order = mine.scan, mine.search.found, mine.search.order
    for i in range(begin, end + 1):
        buffer = i & 1
        if i < end:
            here = _head_of(kind, query, order[i], j)
            later = _head_of(kind, query, order[min(i + 1, end - 1)], j)
            sum_segment(kind, here, later, mine.search.tables, found.limits, scan, buffer)
        if i > begin:
            done = order[i - 1]
            trim(scan.masks[1 - buffer], done, among.first, among.last)
            hide(scan.masks[1 - buffer], done, query.taken[j])
            factors = _head_of(kind, query, done, j).factors
            _collect(kind, scan, 1 - buffer, factors, done, found)
            for h in range(len(found.counts)):
                make_room(h, wanted.n_candidates, wanted.seed, found, found.entries.shape[1])
    return 0


@jit
def _prepare(kind, query, head, h, mine):
    """The tables of query head `head`, number h of those that share a pass."""
    prepare_query(kind, query, head, h, mine.search)


_choose = make_choose(_prepare, _scan)


def make_sketch(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @kernel
    def sketch_kernel(
        share: Share, query: Query, scratch: Scratch, n_kv_heads: int, among: Range, wanted: Wanted
    ):
        """Lists as the Hamming scan's. For every `together` queries reads bits / 8 + 2 bytes a
        token and KV head, and the K rows of the candidates."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        mine = of_thread(scratch, share.part)
        j = take(share.ticket)
        while j < n_kv_heads:
            query.counts[j], _ = _choose(shape, kind, query, j, among, among.last, wanted, mine)
            j = take(share.ticket)

    return sketch_kernel
