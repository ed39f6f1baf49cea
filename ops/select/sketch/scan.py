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
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ...attention import shape as of
from ...attention.layout import SEGMENT
from ..best import prune_scores
from ..candidates import make_gather, rerank
from ..choice import Range
from ..dense import dense
from ..lists import clear, mark, write_list
from ..masks import WORDS, bits_of, filled_words, kind_of, low_bit, trim
from ..queries import make_query_tables, pack_queries
from ..scores import cost_of, float_bits, score_of
from .arguments import Query, Scratch, Wanted
from .sums import Sketches, sum_segment


@jit
def _collect(kind, scan, turn, factors, segment, found):
    """Append the tokens of one segment's masks whose estimates reach their query's limit."""
    masks, sums = scan.masks[turn], scan.sums[turn]
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
            entries[h, n] = (cost << np.uint64(32)) | np.uint64(segment * SEGMENT + t)
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
    """The best estimates among what was found and what the segments begin .. end-1 have, per query.

    begin, end: of `mine.order`. As the Hamming scan it looks at a segment's masks when
    the next one's are made.
    """
    scan, found = mine.scan, mine.found
    order = mine.order
    for i in range(begin, end + 1):
        turn = i & 1
        if i < end:
            here = _head_of(kind, query, order[i], j)
            ahead = _head_of(kind, query, order[min(i + 1, end - 1)], j)
            sum_segment(kind, here, ahead, mine.tables, found.limits, scan, turn)
        if i > begin:
            done = order[i - 1]
            trim(scan.masks[1 - turn], done, among.first, among.last)
            factors = _head_of(kind, query, done, j).factors
            _collect(kind, scan, 1 - turn, factors, done, found)
            for h in range(len(found.counts)):
                if found.counts[h] + SEGMENT > found.entries.shape[1]:
                    worst = prune_scores(h, wanted.few, wanted.seed, found)
                    found.limits[h] = score_of(worst)
    return 0


_gather = make_gather(_scan)


@jit
def _prepare(kind, query, head, h, mine):
    """The tables of query head `head`, as number h of those that are looked up together."""
    q, padded, turned = query.q, bits_of(kind), mine.turned
    turned[0, :] = 0.0
    for i in range(q.shape[2]):
        turned[0, i] = q[0, head, i]
    weights = address(query.rotation)
    bias = weights + 4 * padded * padded
    dense(address(turned[0]), padded, weights, bias, padded, address(turned[1]))
    make_query_tables(turned[1], padded, mine.tables[h])


@jit
def _choose(shape, kind, query, j, n_kv_heads, among, wanted, mine):
    """The list of one KV head; gives its length."""
    found, chosen, rows = mine.found, mine.chosen, mine.products.rows
    group, together, index = query.q.shape[1] // n_kv_heads, len(found.counts), query.lists[j]
    pack_queries(query.q, j, group, of.rotation(shape) if of.rotates_k(shape) else 0, rows)
    clear(chosen, among.stop)
    for g in range(0, group, together):
        for h in range(together):
            _prepare(kind, query, j * group + g + h, h, mine)
        _gather(kind, query, j, among, wanted, mine)
        clear(found.marks, among.stop)
        for h in range(together):
            mark(found.entries[h], found.counts[h], found.marks)
        n = write_list(found.marks, among.first, among.last, among.last, index)
        listed = index[among.first : n]
        rerank(
            shape, query.segments, j, listed, rows[g : g + together], mine.products, wanted.k,
            wanted.seed, found,
        )  # fmt: skip
        for w in range((among.last + 63) // 64):
            chosen[w] |= found.marks[w]
    return write_list(chosen, among.first, among.last, among.stop, index)


def make_sketch(k_type, v_type, blocks, padded, together):
    """The kernel for KV types, rows of 32 * blocks, `padded` bits, `together` queries at a time."""

    @kernel
    def sketch_kernel(
        share: Share,
        query: Query,
        scratch: Scratch,
        n_kv_heads: int,
        among: Range,
        wanted: Wanted,
    ):
        """Lists as the Hamming scan's, with room for `few` a query. Reads padded / 8 + 2 bytes a
        token and KV head, and the K rows of the candidates."""
        shape, kind = of.shape_of(k_type, v_type, blocks, together), kind_of(padded, together)
        mine = of_thread(scratch, share.part)
        j = take(share.ticket)
        while j < n_kv_heads:
            query.counts[j] = _choose(shape, kind, query, j, n_kv_heads, among, wanted, mine)
            j = take(share.ticket)

    return sketch_kernel
