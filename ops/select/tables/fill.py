"""Codes of keys and queries, and a full run's codes sorted into tables."""

import numpy as np

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import load_u16, store
from ...attention.keys import read_key
from ...attention.layout import SEGMENT, TILE
from .arguments import Keys, Rows, Runs, Shape
from .lanes import TOGETHER, code_in, project
from .planes import ID_BITS, RUN

_ROWS = 16 * TOGETHER  # that a thread hashes at a time
CODES_BYTES = 2 * SEGMENT  # of a table of an open segment


@jit
def area_of(items, segment, j, item_bytes):
    """Address of the tables of KV head j in a segment."""
    return items[segment] + j * SEGMENT * item_bytes


@jit
def _read_centred(keys, t, j, x):
    """Key of token t and KV head j less the centre, into x float32[padded]."""
    layout, place = keys.layout, t % SEGMENT
    head = keys.segments[t // SEGMENT] + j * layout.head_bytes
    read_key(head + place // TILE * layout.tile_bytes, place % TILE, layout, address(x))
    for i in range(keys.centre.shape[1]):
        x[i] -= keys.centre[j, i]


@kernel
def hash_keys_kernel(
    share: Share, keys: Keys, tables: Shape, n_kv_heads: int, first: int, last: int
):
    """Write the codes of tokens first .. last-1, each in its open segment.

    2 E K L operations a key.
    """
    mine, planes = of_thread(keys.work, share.part), keys.planes
    begin, end = first * n_kv_heads, last * n_kv_heads
    at = begin + _ROWS * take(share.ticket)
    while at < end:
        for base in range(at, min(at + _ROWS, end), TOGETHER):
            n = min(TOGETHER, end - base)
            for r in range(n):
                row = base + r
                _read_centred(keys, row // n_kv_heads, row % n_kv_heads, mine.rows[r])
            project(mine.rows, planes.shape[1], address(planes), planes.shape[0], mine.signs)
            for r in range(n):
                t, j = (base + r) // n_kv_heads, (base + r) % n_kv_heads
                to = area_of(keys.items, t // SEGMENT, j, tables.item_bytes) + 2 * (t % SEGMENT)
                signs = address(mine.signs[r])
                for table in range(tables.number):
                    code = code_in(signs, table, tables.bits)
                    store(to, table * CODES_BYTES, np.uint16(code))
        at = begin + _ROWS * take(share.ticket)


@jit
def table_of(items, run, table, j, tables):
    """Address of a table of a full run and KV head j: its entries, then its groups."""
    segment = run * (RUN // SEGMENT) + table // tables.tables_each
    area = area_of(items, segment, j, tables.item_bytes)
    return area + table % tables.tables_each * tables.table_bytes


@jit
def _take_codes(items, run, j, tables, codes):
    """Copy the codes of a run out of the memory that its tables will have."""
    for i in range(RUN // SEGMENT):
        area = area_of(items, run * (RUN // SEGMENT) + i, j, tables.item_bytes)
        for table in range(tables.number):
            place, to = area + table * CODES_BYTES, table * RUN + i * SEGMENT
            for t in range(SEGMENT):
                codes[to + t] = load_u16(place, 2 * t)


@jit
def _sort_table(codes, place, tables, ends):
    """Write the table of a run's codes uint16[RUN] to an address."""
    low, starts = tables.low_bits, place + 2 * RUN
    for g in range(tables.groups + 1):
        ends[g] = 0
    for t in range(RUN):
        ends[(np.int64(codes[t]) >> low) + 1] += 1
    for g in range(tables.groups):
        ends[g + 1] += ends[g]
    for g in range(tables.groups + 1):
        store(starts, 2 * g, np.uint16(ends[g]))
    for t in range(RUN):
        code = np.int64(codes[t])
        group, rest = code >> low, code & ((1 << low) - 1)
        store(place, 2 * ends[group], np.uint16(rest << ID_BITS | t))
        ends[group] += 1


@kernel
def sort_kernel(share: Share, runs: Runs, tables: Shape, n_kv_heads: int, first: int, last: int):
    """Sort the codes of the full runs first .. last-1 into tables."""
    mine = share.part
    item = take(share.ticket)
    while item < (last - first) * n_kv_heads:
        run, j = first + item // n_kv_heads, item % n_kv_heads
        codes, ends = runs.codes[mine], runs.ends[mine]
        _take_codes(runs.items, run, j, tables, codes)
        for table in range(tables.number):
            place = table_of(runs.items, run, table, j, tables)
            _sort_table(codes[table * RUN : (table + 1) * RUN], place, tables, ends)
        item = take(share.ticket)


@kernel
def hash_rows_kernel(share: Share, rows: Rows, tables: Shape):
    """The codes of the rows of q."""
    mine, planes, q = of_thread(rows.work, share.part), rows.planes, rows.q
    n_rows = q.shape[1]
    base = TOGETHER * take(share.ticket)
    while base < n_rows:
        n = min(TOGETHER, n_rows - base)
        for r in range(n):
            for e in range(q.shape[2]):
                mine.rows[r, e] = q[0, base + r, e]
        project(mine.rows, planes.shape[1], address(planes), planes.shape[0], mine.signs)
        for r in range(n):
            signs = address(mine.signs[r])
            for table in range(tables.number):
                rows.codes[base + r, table] = code_in(signs, table, tables.bits)
        base = TOGETHER * take(share.ticket)
