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
    queries_of,
    trim,
)
from ..narrow import places_of
from ..sampling import STRIDE, likely_count, put_order, segments_of
from ..work import NEAR_TOKENS, ROWS, SAMPLE_SEGMENTS
from .arguments import RowQueries, RowScratch, Scratch, Tally
from .hamming import complete, lower, make_room
from .lots import COST_LIMIT, key_of, lots_of, write_lots
from .near import LOOKUP, make_tables, near_spread, set_limit, spread_segment, word_at

_GUESS = 32  # a limit of costs, for the first row of a block
_OF_SEGMENT = 64  # times as many tokens have a sample of a segment, at most SAMPLE_SEGMENTS
_SURPLUS = 1.4  # times the signatures that are wanted of a sample, which are few enough


@jit
def _pass(block, p):
    """The memory of pass p of a block of rows, as the functions of `hamming` take it."""
    return Scratch(
        block.tables[p], block.limits[p], block.planes, block.masks, block.tally[p], block.order,
        block.entries[p], block.spare, block.marks, block.histogram,
    )  # fmt: skip


@jit
def _tally(mine, together):
    rows = mine.tally
    return Tally(rows[0, :together], rows[1, :together])


@jit
def _take_sample(kind, items, offset, first, last, block):
    """Copy and spread runs of 128 signatures, evenly from first .. last-1; returns how many."""
    tokens = last - first
    n = min(max(tokens // (_OF_SEGMENT * SEGMENT), 1), SAMPLE_SEGMENTS) * SEGMENT
    if tokens < 4 * n:
        return 0
    item_bytes, place = bits_of(kind) // 8, address(block.sample)
    step = (last - first - NEAR_TOKENS) // max(1, n // NEAR_TOKENS - 1)
    for i in range(n):
        t = first + i // NEAR_TOKENS * step + i % NEAR_TOKENS
        word = word_at(kind, items[t // SEGMENT] + offset + t % SEGMENT * item_bytes)
        if item_bytes == 4:
            store(place, 4 * i, np.uint32(word))
        else:
            store(place, 8 * i, word)
    for t in range(0, n, SEGMENT):
        planes = address(block.sample_planes) + t * (bits_of(kind) // 4)
        spread_segment(kind, place + t * item_bytes, planes)
    return n


@jit
def _count_near(kind, n, queries, block, mine, tally):
    """counts[h] = signatures of the sample of n whose cost is below the limit of query h."""
    masks, counts = mine.masks[0], tally.counts
    for h in range(len(counts)):
        counts[h] = 0
        set_limit(kind, mine.limits, h, tally.below[h])
    for t in range(0, n, SEGMENT):
        words = address(block.sample) + t * (bits_of(kind) // 8)
        planes = address(block.sample_planes) + t * (bits_of(kind) // 4)
        near_spread(
            kind, words, planes, np.uint64(0), address(queries), address(mine.tables),
            address(mine.limits), address(masks),
        )  # fmt: skip
        for h in range(len(counts)):
            for w in range(WORDS):
                counts[h] += bit_count(masks[h, w])


@jit
def _next_guess(limit, low, high, step):
    """A limit between `low` and `high`, near the last one where only one of these is known."""
    if low > 0 and high < COST_LIMIT:
        return (low + high) // 2
    return max(min(limit + step if limit == low else limit - step, high - 1), low + 1)


@jit
def _first_limits(kind, n, share, k, queries, block, mine, tally):
    """Move each query's limit from a guess to one that some more signatures reach than k.

    n: signatures in the sample, a `share` of all; none: they are few, and all are candidates.
    """
    below, counts, low, high = tally.below, tally.counts, mine.histogram[:4], mine.histogram[4:8]
    wanted = likely_count(k, share)
    for h in range(len(counts)):
        low[h], high[h] = 0, COST_LIMIT  # admits too few, admits enough
    searching, step = wanted < n, 4
    while searching:
        _count_near(kind, n, queries, block, mine, tally)
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
        set_limit(kind, mine.limits, h, below[h])


@jit
def _begin(kind, n, share, k, together, queries, block):
    """Make the tables and first limits of all passes of a block; queries uint64 (rows, G)."""
    n_rows, group = queries.shape
    passes = group // together
    for p in range(n_rows * passes):
        own = queries[p // passes, p % passes * together : (p % passes + 1) * together]
        mine = _pass(block, p)
        tally = _tally(mine, together)
        make_tables(own, bits_of(kind), mine.tables)
        for h in range(together):
            before = block.tally[p - passes, 0, h] if p >= passes else _GUESS
            tally.below[h] = min(before, COST_LIMIT - 1)
        _first_limits(kind, n, share, k, own, block, mine, tally)


@jit
def _collect(kind, buffer, words, segment, queries, tally, mine, block):
    """As `hamming.collect`, of a first scan, and faster: of all queries in one loop, whose end
    alone is not foreseen."""
    masks, places, lots = address(mine.masks[buffer]), address(block.places), address(block.lots)
    counts, limits, unit = tally.counts, tally.below, lots_of(kind)
    item_bytes, line, entries = bits_of(kind) // 8, mine.entries.strides[0], address(mine.entries)
    to, before = block.ends, 0
    for h in range(len(counts)):
        to[h] = entries + h * line + 8 * (counts[h] - before)
        if not LOOKUP:
            found = bits_in(masks + h * MASK_BYTES)
            counts[h] += found
            before += found
    n = places_of(masks, filled_words(kind, masks), places)
    for i in range(n):
        place = np.int64(load_u32(places, 4 * i))
        own, t = place // SEGMENT, place % SEGMENT
        d = bit_count(word_at(kind, words + t * item_bytes) ^ queries[own])
        cost = unit * d + np.int64(load_u8(lots, t))
        if LOOKUP:  # the masks have a few others, too
            store(to[own], 0, entry_of(cost, segment * SEGMENT + t))
            near = np.int64(cost < limits[own])
            to[own] += 8 * near
            counts[own] += near
        else:
            store(to[own], 8 * i, entry_of(cost, segment * SEGMENT + t))


@jit
def _scan_rows(kind, items, offset, among, together, queries, k, seed, block):
    """Scan the signatures first .. last-1 of a KV head, and add the candidates of all passes.

    As `hamming._scan`, but that a segment is compared with the queries of all passes in turn. The
    masks of a pass are read when the next one's have been written, see there.
    """
    first, last, passes = among.first, among.last, queries.shape[1] // together
    planes, scanned, n_passes = address(block.planes), 0, queries.shape[0] * passes
    stride = STRIDE if last - first > STRIDE * SEGMENT else 1
    n, due = put_order(first, last, stride, block.order)  # segments, and after which limits are set
    for i in range(n):
        segment = block.order[i]
        words = items[segment] + offset
        key, whole = np.uint64(key_of(segment, seed)), first <= segment * SEGMENT <= last - SEGMENT
        spread_segment(kind, words, planes)
        write_lots(kind, key, address(block.lots))
        scanned += min((segment + 1) * SEGMENT, last) - max(segment * SEGMENT, first)
        lowers = i + 1 == due and i + 1 < n
        for p in range(n_passes + 1):
            if p < n_passes:
                place = address(block.masks) + (p & 1) * block.masks.shape[1] * MASK_BYTES
                place_of = address(queries) + 8 * p * together
                near_spread(
                    kind, words, planes, key, place_of, address(block.tables[p]),
                    address(block.limits[p]), place,
                )  # fmt: skip
                if not whole:
                    trim(block.masks[p & 1], segment, first, last)
            if p == 0:
                continue
            mine = _pass(block, p - 1)
            tally, at = _tally(mine, together), (p - 1) % passes * together
            asking = queries[(p - 1) // passes, at : at + together]
            _collect(kind, (p - 1) & 1, words, segment, asking, tally, mine, block)
            make_room(kind, k, seed, tally, mine)
            if lowers:
                lower(kind, scanned / (last - first), k, tally, mine)
        if lowers:
            due *= 2


@jit
def row_marks(kind, items, offset, among, queries, k, seed, p, block):
    """What `queries` uint64 choose, those of one row or of one pass of it, from pass p on: bits of
    uint64[]."""
    together, (begin, end) = queries_of(kind), segments_of(among)
    clear(block.marks, among.last)
    for i in range(0, len(queries), together):
        mine = _pass(block, p + i // together)
        tally, own = _tally(mine, together), queries[i : i + together]
        complete(
            kind, items, offset, among, block.none_taken, end - begin, own, k, seed, tally, mine
        )
    return block.marks


@jit
def scan_block(kind, given, j, row, among, together, k, seed, block):
    """Find the candidates of the rows of a block, from `row` on; returns their queries."""
    first, last, offset = among.first, among.last, j * SEGMENT * (bits_of(kind) // 8)
    n_rows, _, group = given.queries.shape
    queries = block.queries[: min(ROWS, n_rows - row)]
    for r in range(len(queries)):
        for g in range(group):
            queries[r, g] = given.queries[row + r, j, g]
    sampled = _take_sample(kind, given.items, offset, first, last, block)
    _begin(kind, sampled, sampled / (last - first), k, together, queries, block)
    _scan_rows(kind, given.items, offset, among, together, queries, k, seed, block)
    return queries


def make_rows(bits, together):
    """The kernel for signatures of `bits` bits, `together` queries of a group at a time."""

    @kernel
    def rows_kernel(
        share: Share, given: RowQueries, scratch: RowScratch, among: Range, k: int, seed: int
    ):
        """Each row's and KV head's list: the k of first .. last-1 nearest to each of its queries.

        Reads bits / 8 bytes a token and KV head for every 32 rows.
        """
        last, kind, hashed = among.last, kind_of(bits, together), np.uint32(seed)
        n_rows, n_kv_heads, group = given.queries.shape
        block, passes = of_thread(scratch, share.part), group // together
        n_blocks = (n_rows + ROWS - 1) // ROWS
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            j, row = item // n_blocks, item % n_blocks * ROWS
            offset = j * SEGMENT * (bits // 8)
            queries = scan_block(kind, given, j, row, among, together, k, hashed, block)
            for r in range(len(queries)):
                marks = row_marks(
                    kind, given.items, offset, among, queries[r], k, hashed, r * passes, block
                )
                given.counts[row + r, j] = write_list(marks, 0, last, last, given.lists[row + r, j])
            item = take(share.ticket)

    return rows_kernel
