"""Choosing by sketches for many rows: one reading of the sketches for a block of rows.

Segments are the outer loop and rows the inner one: what the queries of all rows share of a segment
(`spread`) is made once, and stays in the cache while they sum theirs. A query's limit is found in a
sample, from that of the row before it on; where it proves too high, its sketches are scanned again.
A limit decides how many tokens are looked at, and never which are chosen: each row's list is that
of `choose`.
"""

import numpy as np

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take, word
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import store
from ...attention.layout import SEGMENT
from ...attention.shape import shape_of
from ..best import entry_of, prune_scores
from ..choice import Candidates, Range, Wanted
from ..lists import clear, write_list
from ..masks import MASK_BYTES, WORDS, bits_of, filled_words, kind_of, places_of, trim
from ..narrow import keep_best, limit_between, mark_k_best
from ..queries import pack_queries, tables_of
from ..rerank import mark_largest
from ..sampling import STRIDE, likely_count, put_order, sample_size
from ..scores import cost_of, float_bits
from ..work import ROWS
from .arguments import RowQueries, RowScratch
from .scan import sketches_at
from .spread import spread_segment, sum_spread
from .sums import Sketches

_RUN = 32  # neighbouring sketches of a sample


@jit
def _take_sample(kind, rows, j, among, block):
    """Spread a sample of the sketches of KV head j; returns `sample_size`."""
    tokens, n_bytes = among.last - among.first, bits_of(kind) // 8
    n, place = sample_size(tokens), address(block.sample)
    factors, step = place + n * n_bytes, (tokens - _RUN) // max(n // _RUN - 1, 1)
    for i in range(n):
        t = among.first + i // _RUN * step + i % _RUN
        sketches, t_in = sketches_at(kind, rows.keys, j, t // SEGMENT), t % SEGMENT
        for at in range(0, n_bytes, 8):
            store(place, i * n_bytes + at, np.uint64(word(sketches.bits + t_in * n_bytes, at)))
        store(factors, 2 * i, v.load_u16(sketches.factors, 2 * t_in))
    for part in range(n // SEGMENT):
        t = part * SEGMENT
        spread_segment(kind, Sketches(place + t * n_bytes, factors + 2 * t), block.spread, part)
    return n


@jit
def _score_sample(kind, n, first, block):
    """Write the estimates of the n sketches of the sample for the queries of a pass."""
    together = block.scan.sums.shape[1]
    queries = slice(first, first + together)
    for part in range(n // SEGMENT):
        tables, limits = block.tables[queries], block.limits[queries]
        sum_spread(kind, 0, 0, block.spread, part, tables, limits, block.scan, 0)
        factors = address(block.spread.factors[part])
        for h in range(together):
            sums, line = address(block.scan.sums[0, h]), address(block.rerank.scores[part, h])
            for t in range(0, SEGMENT, 16):
                store(line, 4 * t, v.load_i8_f32(sums, t) * v.load_f32(factors, 4 * t))


@jit
def _first_limits(kind, n, of_all, n_candidates, group, block, n_queries):
    """Set the limit of each query so that some more estimates reach it than are wanted.

    n: estimates in the sample, a share `of_all` of them.
    """
    together, limits = block.scan.sums.shape[1], block.limits
    least = np.int64(likely_count(n_candidates, of_all))
    most, all_scores = least + least // 4 + 1, block.rerank.scores
    for first in range(0, n_queries, together):
        limits[first : first + together] = -np.inf
        if 2 * least > n:
            continue
        _score_sample(kind, n, first, block)
        for h in range(together):
            query, scores = first + h, address(all_scores[0, h])
            guess = limits[query - group] if query >= group else np.float32(0.0)
            limits[query] = limit_between(scores, all_scores.strides[0], n, least, most, guess)


@jit
def _collect(kind, segment, buffer, first, block):
    """Append the tokens of the masks of a pass whose estimates reach their query's limit."""
    scan, places, factors = block.scan, address(block.places), address(block.spread.factors[0])
    masks = address(scan.masks[buffer])
    filled = filled_words(kind, masks)
    for h in range(scan.sums.shape[1]):
        query, sums = first + h, address(scan.sums[buffer, h])
        of_query = (filled >> np.uint64(WORDS * h)) & np.uint64((1 << WORDS) - 1)
        n = places_of(masks + h * MASK_BYTES, of_query, places)
        count, limit = block.counts[query], block.limits[query]
        to = address(block.entries[query])
        for i in range(n):
            t = np.int64(v.load_u32(places, 4 * i))
            total = np.int8(v.load_u8(sums, t))
            estimate = np.float32(total) * v.load_one_f32(factors, 4 * t)
            cost = cost_of(np.uint64(float_bits(estimate)))
            store(to, 8 * count, entry_of(cost, segment * SEGMENT + t))
            count += estimate >= limit
        block.counts[query] = count


@jit
def _make_room(first, n, wanted, block):
    """Prune the candidates of the n queries from `first` on whose buffer a segment could fill."""
    for query in range(first, first + n):
        if block.counts[query] + SEGMENT > block.entries.shape[1]:
            queries = slice(query, query + 1)
            candidates = Candidates(
                block.limits[queries], block.entries[queries], block.counts[queries],
                block.rerank.spare, block.rerank.histogram, block.marks,
            )  # fmt: skip
            prune_scores(0, wanted.n_candidates, wanted.seed, candidates)


@jit
def _scan(kind, rows, j, among, begin, end, n_passes, wanted, block):
    """Add the tokens of segments begin .. end-1 of the order to the candidates of `passes`.

    The masks of a pass are read when those of the next pass are written, as in the Hamming scan.
    """
    scan, spread, together = block.scan, block.spread, block.scan.sums.shape[1]
    for i in range(begin, end):
        segment = block.order[i]
        lowest, least = spread_segment(kind, sketches_at(kind, rows.keys, j, segment), spread, 0)
        for number in range(n_passes + 1):
            buffer = number & 1
            if number < n_passes:
                first = block.passes[number]
                queries = slice(first, first + together)
                tables, limits = block.tables[queries], block.limits[queries]
                sum_spread(kind, lowest, least, spread, 0, tables, limits, scan, buffer)
                trim(scan.masks[buffer], segment, among.first, among.last)
            if number > 0:
                before = block.passes[number - 1]
                _collect(kind, segment, 1 - buffer, before, block)
                _make_room(before, together, wanted, block)


@jit
def _raise(n_queries, of_all, n_candidates, block):
    """Raise the limits by the candidates among a share `of_all` of the tokens."""
    enough = np.int64(likely_count(n_candidates, of_all))
    limits, counts = block.limits, block.counts
    for query in range(n_queries):
        entries = address(block.entries[query])
        limits[query], counts[query] = keep_best(
            entries, counts[query], enough, limits[query], block.rerank.histogram
        )


@jit
def _all_passes(n_queries, together, passes):
    """List all passes for the next scan; returns how many there are."""
    for number in range(n_queries // together):
        passes[number] = number * together
    return n_queries // together


@jit
def _lower(n_queries, together, n_candidates, tries, block):
    """Lower the limits of queries with too few candidates, to scan again.

    Lists their passes for the next scan, and returns how many there are. The other queries look
    for nothing.
    """
    n, limits, counts, floors = 0, block.limits, block.counts, block.floors
    for first in range(0, n_queries, together):
        block.passes[n], again = first, False
        for query in range(first, first + together):
            if counts[query] < n_candidates and floors[query] != -np.inf:
                floors[query] -= np.float32(0.1 * tries) * abs(floors[query])
                if tries > 3:
                    floors[query] = -np.inf
                limits[query], counts[query], again = floors[query], 0, True
            else:
                limits[query] = np.inf
        n += again
    return n


@jit
def _find_candidates(kind, rows, j, among, n_queries, wanted, block):
    """Collect the best estimates of each query, and a few more: all that reach its floor."""
    together, group = block.scan.sums.shape[1], len(block.rerank.rows)
    n, floors, limits = _take_sample(kind, rows, j, among, block), block.floors, block.limits
    tokens = among.last - among.first
    _first_limits(kind, n, n / tokens, wanted.n_candidates, group, block, n_queries)
    block.counts[:n_queries] = 0
    n, due = put_order(among.first, among.last, STRIDE, block.order)
    passes = _all_passes(n_queries, together, block.passes)
    _scan(kind, rows, j, among, 0, due, passes, wanted, block)
    if tokens >= 4 * SEGMENT:
        scanned = min(due * SEGMENT, tokens)
        _raise(n_queries, scanned / tokens, wanted.n_candidates, block)
    for query in range(n_queries):  # assigning slices would allocate
        floors[query] = limits[query]
    _scan(kind, rows, j, among, due, n, passes, wanted, block)
    tries = 1
    passes = _lower(n_queries, together, wanted.n_candidates, tries, block)
    while passes > 0:
        _scan(kind, rows, j, among, 0, n, passes, wanted, block)
        tries += 1
        passes = _lower(n_queries, together, wanted.n_candidates, tries, block)


def make_sketch_rows(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @jit
    def choose_row(rows, row, j, first, among, wanted, block):
        """Write the list of one row and KV head, whose candidates are those of query first on."""
        shape, rerank = shape_of(k_type, v_type, blocks, together), block.rerank
        lists, listed, last = rows.lists, rerank.listed, among.last
        pack_queries(shape, rows.q[row : row + 1], j, len(rerank.rows), rerank.rows)
        clear(rerank.chosen, last)
        for g in range(0, len(rerank.rows), together):
            clear(block.marks, last)
            for query in range(first + g, first + g + together):
                mark_k_best(
                    address(block.entries[query]), block.counts[query], wanted.n_candidates,
                    block.floors[query], wanted.seed, rerank.spare, rerank.histogram, block.marks,
                )  # fmt: skip
            n = write_list(block.marks, 0, last, last, listed)
            mark_largest(shape, rows.keys.segments, j, listed[:n], g, wanted, rerank)
        lists.counts[row, j] = write_list(rerank.chosen, 0, last, last, lists.tokens[row, j])

    @kernel
    def sketch_rows_kernel(
        share: Share, rows: RowQueries, memory: RowScratch, among: Range, wanted: Wanted
    ):
        """Each row's and KV head's list, without tokens before the first. For every 32 rows reads
        bits / 8 + 2 bytes a token and KV head, and for each row the K rows of its candidates."""
        kind, block = kind_of(bits, together), of_thread(memory, share.part)
        n_rows, n_kv_heads = rows.lists.counts.shape
        group, n_blocks = rows.q.shape[1] // n_kv_heads, (n_rows + ROWS - 1) // ROWS
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            j, row = item // n_blocks, item % n_blocks * ROWS
            n = min(ROWS, n_rows - row)
            for query in range(n * group):
                q = rows.q[row + query // group, j * group + query % group]
                inverse, tables = rows.keys.frame.inverse[j], block.tables[query]
                tables_of(kind, q, inverse, rows.keys.rotation, block.rotated, tables)
            _find_candidates(kind, rows, j, among, n * group, wanted, block)
            block.rerank.guesses[:] = 0.0
            for r in range(n):
                choose_row(rows, row + r, j, r * group, among, wanted, block)
            item = take(share.ticket)

    return sketch_rows_kernel
