"""Tokens that agree with a query in at least two tables, and their log weights.

Of each full run, a query reads one group of every table: the tokens with its code. Of segments
after them, it compares all codes. Each query draws for itself. The list has what any query of the
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
    store,
)
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from ..choice import Range
from ..lists import write_list
from ..masks import WORDS, inside
from ..stored import tile_of
from .arguments import Query, Scratch, Shape
from .codes import CODES_BYTES, above_one, area_of, equal_codes, table_of
from .planes import ID_BITS, RUN, STEPS

NOT_DRAWN = np.float32(-1e30)
_KEYS_AHEAD = 24  # keys from prefetch to use
_RUN_WORDS = RUN // 64
_ONE = np.uint64(1)


@jit
def _find_groups(items, run, j, codes, tables, groups):
    """Write where the groups of a query's codes begin and end; prefetch their entries."""
    low = tables.low_bits
    for table in range(tables.number):
        place = table_of(items, run, table, j, tables)
        groups[table, 0] = place
        prefetch_l1(place, 2 * (RUN + (np.int64(codes[table]) >> low)))
    for table in range(tables.number):
        place = groups[table, 0]
        both = np.int64(load_u32(place, 2 * (RUN + (np.int64(codes[table]) >> low))))
        # A file may say anything: no group ends beyond the entries.
        first = place + 2 * min(int(both & 0xFFFF), RUN)
        last = place + 2 * min(int(both >> 16), RUN)
        for line in range(first, last, 64):
            prefetch_l1(line, 0)
        groups[table, 0], groups[table, 1] = first, last


@jit
def _look_up(items, run, j, codes, tables, drawn, scratch):
    """Set the bits of what a query draws of a full run; returns the entries read."""
    agreed, read = scratch.agreed, np.int64(0)
    for t in range(RUN):
        agreed[t] = 0
    _find_groups(items, run, j, codes, tables, scratch.groups)
    for table in range(tables.number):
        first, last = scratch.groups[table, 0], scratch.groups[table, 1]
        low = np.int64(codes[table]) & ((1 << tables.low_bits) - 1)
        for place in range(first, last, 2):
            entry = np.int64(load_u16(place, 0))
            if entry >> ID_BITS == low:
                token = entry & (RUN - 1)
                agreed[token] |= agreed[token] + np.uint8(1)
        read += (last - first) >> 1
    for w in range(_RUN_WORDS):
        drawn[run * _RUN_WORDS + w] = above_one(address(agreed) + 64 * w)
    return read


@jit
def _compare(area, n_tokens, codes, tables, drawn, scratch):
    """Set the bits of what a query draws of the codes of a segment's first tokens."""
    once, twice, words = scratch.masks[0], scratch.masks[1], (n_tokens + 63) // 64
    for w in range(WORDS):
        once[w] = twice[w] = 0
    for table in range(tables.number):
        place, code = area + table * CODES_BYTES, np.int64(codes[table])
        for w in range(words):
            hits = equal_codes(place + 128 * w, code)
            twice[w] |= once[w] & hits
            once[w] |= hits
    for w in range(WORDS):
        drawn[w] = twice[w]
    return words * 64 * tables.number


@jit
def _draw(query, codes, j, n_runs, tables, among, scratch):
    """Set the bits of what each query of KV head j draws; returns the entries read."""
    first, last, read = among.first, among.last, 0
    begin, end = first // SEGMENT, (last + SEGMENT - 1) // SEGMENT
    group, items = codes.shape[0], query.items
    n_runs = min(n_runs, (last + RUN - 1) // RUN)
    for run in range(first // RUN, n_runs):
        for h in range(group):
            read += _look_up(items, run, j, codes[h], tables, scratch.drawn[h], scratch)
    for segment in range(max(begin, n_runs * (RUN // SEGMENT)), end):
        area = area_of(items, segment, j, tables.item_bytes)
        n_tokens = min(last - segment * SEGMENT, SEGMENT)
        for h in range(group):
            drawn = scratch.drawn[h, segment * WORDS : (segment + 1) * WORDS]
            read += _compare(area, n_tokens, codes[h], tables, drawn, scratch)
    for w in range(first >> 6, (last + 63) >> 6):
        here, marks = inside(w, first, last), np.uint64(0)
        for h in range(group):
            scratch.drawn[h, w] &= here
            marks |= scratch.drawn[h, w]
        scratch.marks[w] = marks
    return read


@jit
def _log_weight(cosine, weights):
    """-log u, between the nearest two of the table's values: see `log_weight_table`."""
    rest = np.float32(1.0) - abs(cosine)
    root = np.float32(math.sqrt(rest)) if rest > 0.0 else np.float32(0.0)
    place = (root if cosine >= np.float32(0.0) else np.float32(2.0) - root) * np.float32(STEPS // 2)
    i = min(int(place), STEPS - 1)
    return weights[i] + (place - np.float32(i)) * (weights[i + 1] - weights[i])


@jit
def _product(x, y, n):
    """The product of two vectors of n (a multiple of 32) floats at addresses."""
    a, b = set_f32(0.0), set_f32(0.0)
    for i in range(0, n, 32):
        a = fma(load_f32(x, 4 * i), load_f32(y, 4 * i), a)
        b = fma(load_f32(x, 4 * i + 64), load_f32(y, 4 * i + 64), b)
    return hsum(a + b)


@jit
def _put_queries(query, j, scratch):
    """The queries of KV head j as padded rows, and 1 / their norms."""
    group, q = scratch.drawn.shape[0], query.q
    for h in range(group):
        for e in range(q.shape[2]):
            scratch.rows[h, e] = q[0, j * group + h, e]
        x = address(scratch.rows[h])
        scratch.norms[h] = _inverse(_product(x, x, scratch.rows.shape[1]))


@jit
def _inverse(square):
    """1 / sqrt(square), 0 for 0: a vector without direction then has cosine 0 with all."""
    return np.float32(1.0 / math.sqrt(square)) if square > 0.0 else np.float32(0.0)


@jit
def _take_off(x, centre, n):
    """x -= centre at addresses of n floats; returns the square of x's norm."""
    total = set_f32(0.0)
    for i in range(0, 4 * n, 64):
        rest = load_f32(x, i) - load_f32(centre, i)
        store(x, i, rest)
        total = fma(rest, rest, total)
    return hsum(total)


@jit
def _set_fixed(query, j, n, among, scratch):
    """Log weights 0 for the tokens that are always read, of the n listed ones of KV head j."""
    group, stop = scratch.drawn.shape[0], n - (among.stop - among.last)
    for h in range(j * group, (j + 1) * group):
        for i in range(among.first):
            query.log_weights[h, i] = 0.0
        for i in range(stop, n):
            query.log_weights[h, i] = 0.0


@jit
def _weigh(query, j, first, stop, scratch):
    """The log weights of entries first .. stop-1 of the list of KV head j.

    One function, as each call with all of `query` costs more than a token's work.
    """
    group, padded, tokens = scratch.drawn.shape[0], scratch.rows.shape[1], query.lists.tokens[j]
    segments, layout, weights = query.segments, query.layout, query.weights
    drawn, norms, out = scratch.drawn, scratch.norms, query.log_weights
    row_bytes = layout.k_row_bytes
    rows, centre = address(scratch.rows), address(query.centre) + j * 4 * padded
    x = rows + group * 4 * padded
    for i in range(first, stop):
        later = np.int64(tokens[min(i + _KEYS_AHEAD, stop - 1)])
        place = tile_of(segments, j, later, layout) + later % TILE * row_bytes
        for line in range(0, row_bytes, 64):
            prefetch(place, line)
        t = np.int64(tokens[i])
        read_key(tile_of(segments, j, t, layout), t % TILE, layout, x)
        norm = _inverse(_take_off(x, centre, padded))
        w, bit = t >> 6, _ONE << np.uint64(t & 63)
        for h in range(group):
            weight = NOT_DRAWN
            if drawn[h, w] & bit:
                product = _product(rows + h * 4 * padded, x, padded)
                weight = _log_weight(product * (norm * norms[h]), weights)
            out[j * group + h, i] = weight


@kernel
def draw_kernel(
    share: Share, query: Query, memory: Scratch, tables: Shape, n_runs: int, among: Range
):
    """Each KV head's list: tokens 0 .. first-1, what its queries draw of first .. last-1,
    last .. stop-1; and the log weights of all its queries.

    Reads for every query, run and table a group of entries, and the keys that were drawn.
    """
    scratch, first, last = of_thread(memory, share.part), among.first, among.last
    group = scratch.drawn.shape[0]
    j = take(share.ticket)
    while j < len(query.lists.counts):
        codes = query.codes[j * group : (j + 1) * group]
        query.entries_read[j] = _draw(query, codes, j, n_runs, tables, among, scratch)
        n = write_list(scratch.marks, first, last, among.stop, query.lists.tokens[j])
        query.lists.counts[j] = n
        _put_queries(query, j, scratch)
        _set_fixed(query, j, n, among, scratch)
        _weigh(query, j, first, n - (among.stop - last), scratch)
        j = take(share.ticket)
