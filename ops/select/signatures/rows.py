"""The k signatures nearest to each query of many rows: one reading of the signatures for a block.

Segments are the outer loop and rows the inner one: a segment's signatures are spread once (`near`)
and stay in L1 while all rows of a block compare theirs. A row's limits begin as those of the row
before it, are corrected by counting in a sample, and are lowered during the scan as in `hamming`.
Where one proves too low, that row alone is scanned again. So each row's choice is that of
`hamming`, whatever its limits were.
"""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import load_u8, load_u32, store
from ...attention.layout import SEGMENT
from ..best import entry_of
from ..choice import Range
from ..lists import clear, write_list
from ..masks import (
    MASK_BYTES,
    WORDS,
    bit_count,
    bits_in,
    bits_of,
    filled_words,
    kind_of,
    places_of,
    queries_of,
    trim,
)
from ..sampling import STRIDE, likely_count, put_order, sample_size
from ..work import NEAR_TOKENS, ROWS
from .arguments import Head, RowQueries, RowScratch, Scratch
from .hamming import complete, lower, make_room, tally_of
from .lots import COST_LIMIT, key_of, lots_of, write_lots
from .near import LOOKUP, make_tables, near_spread, set_limit, spread_segment, word_at

_GUESS = 32  # a limit of costs, for the first row of a block
_SURPLUS = 1.4  # times the signatures that are wanted of a sample, which are few enough


@jit
def _pass(block, p):
    """The memory of pass p of a block of rows, as the functions of `hamming` take it."""
    return Scratch(
        block.tables[p], block.limits[p], block.planes, block.masks, block.tally[p], block.order,
        block.entries[p], block.spare, block.marks, block.histogram,
    )  # fmt: skip


@jit
def _take_sample(kind, head, block):
    """Copy and spread runs of 128 signatures, evenly from the range; returns `sample_size`."""
    first, tokens, items = head.among.first, head.among.last - head.among.first, head.items
    n, item_bytes, place = sample_size(tokens), bits_of(kind) // 8, address(block.sample)
    step = (tokens - NEAR_TOKENS) // max(1, n // NEAR_TOKENS - 1)
    for i in range(n):
        t = first + i // NEAR_TOKENS * step + i % NEAR_TOKENS
        word = word_at(kind, items[t // SEGMENT] + head.offset + t % SEGMENT * item_bytes)
        if item_bytes == 4:
            store(place, 4 * i, np.uint32(word))
        else:
            store(place, 8 * i, word)
    for t in range(0, n, SEGMENT):
        planes = address(block.sample_planes) + t * (bits_of(kind) // 4)
        spread_segment(kind, place + t * item_bytes, planes)
    return n


@jit
def _count_near(kind, n, queries, block, scratch, tally):
    """counts[h] = signatures of the sample of n whose cost is below the limit of query h."""
    masks, counts = scratch.masks[0], tally.counts
    for h in range(len(counts)):
        counts[h] = 0
        set_limit(kind, scratch.limits, h, tally.below[h])
    for t in range(0, n, SEGMENT):
        words = address(block.sample) + t * (bits_of(kind) // 8)
        planes = address(block.sample_planes) + t * (bits_of(kind) // 4)
        near_spread(
            kind, words, planes, np.uint64(0), address(queries), address(scratch.tables),
            address(scratch.limits), address(masks),
        )  # fmt: skip
        for h in range(len(counts)):
            for w in range(WORDS):
                counts[h] += bit_count(masks[h, w])


@jit
def _next_guess(limit, low, high, step):
    """Return a limit between `low` and `high`: near the last one until both are known."""
    if low > 0 and high < COST_LIMIT:
        return (low + high) // 2
    return max(min(limit + step if limit == low else limit - step, high - 1), low + 1)


@jit
def _first_limits(kind, n, wanted, queries, block, scratch, tally):
    """Move each query's limit from a guess to one that some more of the sample reach than wanted.

    n: signatures in the sample; up to `wanted`: they are few, and all are candidates.
    """
    below, counts = tally.below, tally.counts
    low, high = scratch.histogram[:4], scratch.histogram[4:8]  # admits too few, admits enough
    for h in range(len(counts)):
        low[h], high[h] = 0, COST_LIMIT
    searching, step = wanted < n, 4
    while searching:
        _count_near(kind, n, queries, block, scratch, tally)
        searching = False
        for h in range(len(counts)):
            if high[h] - low[h] <= 1:
                continue
            if counts[h] < wanted:
                low[h] = below[h]
            else:
                high[h] = below[h]
                if counts[h] <= _SURPLUS * wanted:
                    low[h] = below[h]
            if high[h] - low[h] > 1:
                searching = True
                below[h] = _next_guess(below[h], low[h], high[h], step)
        step *= 2
    for h in range(len(counts)):
        below[h] = high[h]
        counts[h] = 0
        set_limit(kind, scratch.limits, h, below[h])


@jit
def _begin(kind, head, queries, block):
    """Make the tables and first limits of all passes of a block; queries uint64 (rows, G)."""
    (n_rows, group), together = queries.shape, queries_of(kind)
    n, passes = _take_sample(kind, head, block), group // together
    wanted = likely_count(head.k, n / (head.among.last - head.among.first))
    for p in range(n_rows * passes):
        of_pass = queries[p // passes, p % passes * together : (p % passes + 1) * together]
        scratch = _pass(block, p)
        tally = tally_of(scratch.tally, together)
        make_tables(of_pass, bits_of(kind), scratch.tables)
        for h in range(together):
            before = block.tally[p - passes, 0, h] if p >= passes else _GUESS
            tally.below[h] = min(before, COST_LIMIT - 1)
        _first_limits(kind, n, wanted, of_pass, block, scratch, tally)


@jit
def _collect(kind, buffer, words, segment, queries, tally, scratch, block):
    """As `hamming._collect`, in a first scan. All queries share one loop: the CPU mispredicts the
    end of one loop instead of four."""
    masks, places = address(scratch.masks[buffer]), address(block.places)
    lots, counts, limits, unit = address(block.lots), tally.counts, tally.below, lots_of(kind)
    entries, line = address(scratch.entries), scratch.entries.strides[0]
    item_bytes, to, before = bits_of(kind) // 8, block.ends, 0
    for h in range(len(counts)):
        to[h] = entries + h * line + 8 * (counts[h] - before)
        if not LOOKUP:
            n_near = bits_in(masks + h * MASK_BYTES)
            counts[h] += n_near
            before += n_near
    n = places_of(masks, filled_words(kind, masks), places)
    for i in range(n):
        place = np.int64(load_u32(places, 4 * i))
        query, t = place // SEGMENT, place % SEGMENT
        d = bit_count(word_at(kind, words + t * item_bytes) ^ queries[query])
        cost = unit * d + np.int64(load_u8(lots, t))
        if LOOKUP:  # the masks have a few others, too
            store(to[query], 0, entry_of(cost, segment * SEGMENT + t))
            near = np.int64(cost < limits[query])
            to[query] += 8 * near
            counts[query] += near
        else:
            store(to[query], 8 * i, entry_of(cost, segment * SEGMENT + t))


@jit
def _scan_rows(kind, head, queries, block):
    """Scan the signatures of the range, and add the candidates of all passes.

    As `hamming._scan`, but each segment is compared with the queries of all passes in turn. The
    masks of a pass are read when those of the next pass have been written, see there.
    """
    first, last, together = head.among.first, head.among.last, queries_of(kind)
    passes = queries.shape[1] // together
    planes, scanned, n_passes = address(block.planes), 0, queries.shape[0] * passes
    stride = STRIDE if last - first > STRIDE * SEGMENT else 1
    n, due = put_order(first, last, stride, block.order)  # segments, and after which limits are set
    for i in range(n):
        segment = block.order[i]
        words, key = head.items[segment] + head.offset, np.uint64(key_of(segment, head.seed))
        whole = first <= segment * SEGMENT <= last - SEGMENT
        spread_segment(kind, words, planes)
        write_lots(kind, key, address(block.lots))
        scanned += min((segment + 1) * SEGMENT, last) - max(segment * SEGMENT, first)
        lowers = i + 1 == due and i + 1 < n
        for p in range(n_passes + 1):
            if p < n_passes:
                place = address(block.masks) + (p & 1) * block.masks.shape[1] * MASK_BYTES
                place_of_queries = address(queries) + 8 * p * together
                near_spread(
                    kind, words, planes, key, place_of_queries, address(block.tables[p]),
                    address(block.limits[p]), place,
                )  # fmt: skip
                if not whole:
                    trim(block.masks[p & 1], segment, first, last)
            if p == 0:
                continue
            scratch = _pass(block, p - 1)
            tally, at = tally_of(scratch.tally, together), (p - 1) % passes * together
            of_pass = queries[(p - 1) // passes, at : at + together]
            _collect(kind, (p - 1) & 1, words, segment, of_pass, tally, scratch, block)
            make_room(kind, head.k, head.seed, tally, scratch)
            if lowers:
                lower(kind, scanned / (last - first), head.k, tally, scratch)
        if lowers:
            due *= 2


@jit
def row_marks(kind, head, queries, p, block):
    """Return the marks uint64[] of the tokens that `queries` of one row choose, from pass p on."""
    together, first, last = queries_of(kind), head.among.first, head.among.last
    n = (last - 1) // SEGMENT - first // SEGMENT + 1  # segments
    clear(block.marks, last)
    for i in range(0, len(queries), together):
        scratch = _pass(block, p + i // together)
        of_pass = queries[i : i + together]
        complete(kind, head, n, of_pass, tally_of(scratch.tally, together), scratch)
    return block.marks


@jit
def head_of(kind, rows, j, among, k, seed, block):
    """Return the `Head` of KV head j for `rows` (`RowQueries`)."""
    offset = j * SEGMENT * (bits_of(kind) // 8)
    return Head(rows.items, offset, among, block.none_taken, k, seed)


@jit
def scan_block(kind, head, rows, j, row, block):
    """Find the candidates of the rows of a block, from `row` on; returns their queries."""
    n_rows, _, group = rows.signatures.shape
    queries = block.queries[: min(ROWS, n_rows - row)]
    for r in range(len(queries)):
        for g in range(group):
            queries[r, g] = rows.signatures[row + r, j, g]
    _begin(kind, head, queries, block)
    _scan_rows(kind, head, queries, block)
    return queries


def make_rows(bits, together):
    """The kernel for signatures of `bits` bits, `together` queries of a group at a time."""

    @kernel
    def rows_kernel(
        share: Share, rows: RowQueries, memory: RowScratch, among: Range, k: int, seed: int
    ):
        """Each row's and KV head's list: the k of first .. last-1 nearest to each of its queries.

        Reads bits / 8 bytes a token and KV head for every 32 rows.
        """
        last, kind, lists = among.last, kind_of(bits, together), rows.lists
        n_rows, n_kv_heads, group = rows.signatures.shape
        block, passes = of_thread(memory, share.part), group // together
        n_blocks = (n_rows + ROWS - 1) // ROWS
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            j, row = item // n_blocks, item % n_blocks * ROWS
            head = head_of(kind, rows, j, among, k, seed, block)
            queries = scan_block(kind, head, rows, j, row, block)
            for r in range(len(queries)):
                marks = row_marks(kind, head, queries[r], r * passes, block)
                n = write_list(marks, 0, last, last, lists.tokens[row + r, j])
                lists.counts[row + r, j] = n
            item = take(share.ticket)

    return rows_kernel
