"""Tokens that agree with a query in at least two tables, and their log weights.

Of each full segment, a query reads one group of every table: some 16 entries. Of an open segment,
it compares all codes. A token is drawn by each query for itself. The list has what any query of the
group drew; for one that did not draw it, a token's log weight is NOT_DRAWN.
"""

import math

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import (
    fma,
    hsum,
    load_f32,
    load_u16,
    load_u32,
    prefetch,
    prefetch_l1,
    set_f32,
)
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from ..choice import Range
from ..lists import write_list
from ..masks import WORDS, inside, low_bit
from .arguments import Query, Scratch, Shape
from .fill import area_of
from .lanes import equal_codes, equal_entries
from .planes import STEPS

NOT_DRAWN = np.float32(-1e30)
_TABLE_BYTES = 2 * SEGMENT
_AHEAD = 8  # tables from prefetch to use
_KEYS_AHEAD = 8  # keys from prefetch to use
_ONE = np.uint64(1)


@jit
def _group_of(area, table, code, tables):
    """First and last entry (exclusive) of a code's group in a table."""
    place = area + tables.count * _TABLE_BYTES + table * 2 * (tables.groups + 1)
    both = np.int64(load_u32(place, 2 * (code >> tables.low_bits)))
    return both & 0xFFFF, both >> 16


@jit
def _prefetch_starts(area, table, code, tables):
    place = area + tables.count * _TABLE_BYTES + table * 2 * (tables.groups + 1)
    prefetch_l1(place, 2 * (code >> tables.low_bits))


@jit
def _look_up(area, table, code, tables, once, twice):
    """Add the tokens of a table that have the code; returns the entries read."""
    first, last = _group_of(area, table, code, tables)
    place, low = area + table * _TABLE_BYTES, code & ((1 << tables.low_bits) - 1)
    for i in range(first, last, 16):
        hits = equal_entries(place + 2 * i, low)
        if last - i < 16:
            hits &= (_ONE << np.uint64(last - i)) - _ONE
        while hits:
            t = np.int64(load_u16(place, 2 * (i + low_bit(hits)))) & (SEGMENT - 1)
            hits &= hits - _ONE
            w, bit = t >> 6, _ONE << np.uint64(t & 63)
            twice[w] |= once[w] & bit
            once[w] |= bit
    return last - first


@jit
def _look_up_all(area, later, codes, tables, mine):
    """Look up the codes of all queries in a full segment; `later`: address of the next one's."""
    count, read = tables.count, 0
    ahead = min(_AHEAD, count // 2)
    for table in range(count):
        near, near_area = table + ahead, area
        if near >= count:
            near, near_area = near - count, later
        far, far_area = table + 2 * ahead, area
        if far >= count:
            far, far_area = far - count, later
        for h in range(codes.shape[0]):
            _prefetch_starts(far_area, far, np.int64(codes[h, far]), tables)
            first, last = _group_of(near_area, near, np.int64(codes[h, near]), tables)
            place = near_area + near * _TABLE_BYTES
            for line in range(2 * first, 2 * last, 64):
                prefetch_l1(place, line)
            prefetch_l1(place, 2 * max(last - 1, first))
        for h in range(codes.shape[0]):
            read += _look_up(
                area, table, np.int64(codes[h, table]), tables, mine.once[h], mine.twice[h]
            )
    return read


@jit
def _compare_all(area, n_tokens, codes, tables, mine):
    """Compare the codes of all queries with those of an open segment's tokens."""
    words = (n_tokens + 63) // 64
    for table in range(tables.count):
        place = area + table * _TABLE_BYTES
        for h in range(codes.shape[0]):
            code = np.int64(codes[h, table])
            for w in range(words):
                hits = equal_codes(place + 128 * w, code)
                mine.twice[h, w] |= mine.once[h, w] & hits
                mine.once[h, w] |= hits
    return n_tokens * tables.count


@jit
def _draw(query, codes, j, n_sorted, tables, among, mine):
    """Set the bits of what each query of KV head j draws; returns the entries read."""
    first, last, read = among.first, among.last, 0
    begin, end = first // SEGMENT, (last + SEGMENT - 1) // SEGMENT
    for segment in range(begin, end):
        area = area_of(query.items, segment, j, tables.item_bytes)
        for h in range(codes.shape[0]):
            for w in range(WORDS):
                mine.once[h, w] = mine.twice[h, w] = 0
        if segment < n_sorted:
            later = area_of(query.items, min(segment + 1, n_sorted - 1), j, tables.item_bytes)
            read += _look_up_all(area, later, codes, tables, mine)
        else:
            n_tokens = min(last - segment * SEGMENT, SEGMENT)
            read += _compare_all(area, n_tokens, codes, tables, mine)
        for w in range(WORDS):
            at = segment * WORDS + w
            here, marks = inside(at, first, last), np.uint64(0)
            for h in range(codes.shape[0]):
                mine.drawn[h, at] = mine.twice[h, w] & here
                marks |= mine.drawn[h, at]
            mine.marks[at] = marks
    return read


@jit
def _agreement(cosine):
    """p = 1 - arccos(cosine) / pi, to 1e-8.

    arccos x = sqrt(1 - x) times a polynomial, 0 <= x <= 1: Abramowitz and Stegun, 4.4.46.
    """
    x = min(abs(cosine), 1.0)
    y = -0.0012624911
    y = y * x + 0.0066700901
    y = y * x - 0.0170881256
    y = y * x + 0.0308918810
    y = y * x - 0.0501743046
    y = y * x + 0.0889789874
    y = y * x - 0.2145988016
    y = y * x + 1.5707963050
    angle = math.sqrt(1.0 - x) * y / math.pi
    return angle if cosine < 0.0 else 1.0 - angle


@jit
def _log_weight(cosine, weights):
    """-log u, between the nearest two of the table's values."""
    place = _agreement(cosine) * STEPS
    i = min(np.int64(place), STEPS - 1)
    rest = np.float32(place - i)
    return weights[i] + rest * (weights[i + 1] - weights[i])


@jit
def _product(x, y, n):
    """The product of two vectors of n (a multiple of 32) floats at addresses."""
    a, b = set_f32(0.0), set_f32(0.0)
    for i in range(0, n, 32):
        a = fma(load_f32(x, 4 * i), load_f32(y, 4 * i), a)
        b = fma(load_f32(x, 4 * i + 64), load_f32(y, 4 * i + 64), b)
    return hsum(a + b)


@jit
def _tile_of(query, t, j):
    """Address of the tile of token t and KV head j."""
    layout, place = query.layout, t % SEGMENT
    head = query.segments[t // SEGMENT] + j * layout.head_bytes
    return head + place // TILE * layout.tile_bytes


@jit
def _prefetch_key(query, t, j):
    row_bytes = query.layout.k_row_bytes
    row = _tile_of(query, t, j) + t % TILE * row_bytes
    for line in range(0, row_bytes, 64):
        prefetch(row, line)


@jit
def _put_queries(query, j, mine):
    """The queries of KV head j as padded rows, and their norms."""
    group, q = mine.once.shape[0], query.q
    for h in range(group):
        for e in range(q.shape[2]):
            mine.rows[h, e] = q[0, j * group + h, e]
        x = address(mine.rows[h])
        mine.norms[h] = math.sqrt(_product(x, x, mine.rows.shape[1]))


@jit
def _weigh_token(query, t, j, place, mine):
    """The log weight of token t for each query: entry `place` of the list."""
    group, padded = mine.once.shape[0], mine.rows.shape[1]
    x, w, bit = mine.rows[group], t >> 6, _ONE << np.uint64(t & 63)
    read_key(_tile_of(query, t, j), t % TILE, query.layout, address(x))
    for i in range(padded):
        x[i] -= query.centre[j, i]
    norm = math.sqrt(_product(address(x), address(x), padded))
    for h in range(group):
        weight = NOT_DRAWN
        if mine.drawn[h, w] & bit:
            product = _product(address(mine.rows[h]), address(x), padded)
            both = norm * mine.norms[h]
            weight = _log_weight(product / both if both > 0.0 else 0.0, query.weights)
        query.log_weights[j * group + h, place] = weight


@jit
def _weigh(query, j, n, among, mine):
    """The log weights of the n listed tokens of KV head j: 0 for those that are always read."""
    group, tokens = mine.once.shape[0], query.lists[j]
    stop = n - (among.stop - among.last)
    for h in range(group):
        weights = query.log_weights[j * group + h]
        for i in range(among.first):
            weights[i] = 0.0
        for i in range(stop, n):
            weights[i] = 0.0
    for i in range(among.first, stop):
        if i + _KEYS_AHEAD < stop:
            _prefetch_key(query, np.int64(tokens[i + _KEYS_AHEAD]), j)
        _weigh_token(query, np.int64(tokens[i]), j, i, mine)


@kernel
def draw_kernel(
    share: Share, query: Query, scratch: Scratch, tables: Shape, n_sorted: int, among: Range
):
    """Each KV head's list: tokens 0 .. first-1, what its queries draw of first .. last-1,
    last .. stop-1; and the log weights of all its queries.

    Reads for every query, segment and table a group of entries, and the keys that were drawn.
    """
    mine, first, last = of_thread(scratch, share.part), among.first, among.last
    group = mine.once.shape[0]
    j = take(share.ticket)
    while j < len(query.counts):
        codes = query.codes[j * group : (j + 1) * group]
        query.entries_read[j] = _draw(query, codes, j, n_sorted, tables, among, mine)
        n = write_list(mine.marks, first, last, among.stop, query.lists[j])
        query.counts[j] = n
        _put_queries(query, j, mine)
        _weigh(query, j, n, among, mine)
        j = take(share.ticket)
