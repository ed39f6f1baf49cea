"""Codes of keys and queries, and a full run's codes sorted into tables."""

import numpy as np
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import (
    at,
    bcast_f32,
    f32x16,
    fma,
    load_f32,
    load_u16,
    load_u32,
    read,
    set_f32,
    store,
)
from ...attention.layout import SEGMENT
from ..stored import read_stored_key
from .arguments import Keys, Rows, Runs, Shape
from .planes import ID_BITS, LANES, RUN

_TOGETHER = 4  # vectors that are hashed together
_ROWS = 16 * _TOGETHER  # that a thread hashes at a time
CODES_BYTES = 2 * SEGMENT  # of a table of an open segment


@intrinsic
def _signs(typingctx, x):
    """Bit i: whether lane i of 16 floats is above 0."""

    def codegen(ctx, b, sig, vals):
        hits = b.fcmp_ordered(">", vals[0], v.const(vals[0].type, 0.0))
        return b.bitcast(hits, v.I16)

    return types.uint16(f32x16), codegen


@intrinsic
def equal_codes(typingctx, address, code):
    """Bit i: whether u16 i of the 64 at an address is the code."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), v.vty(v.I16, 64))
        same = b.icmp_unsigned("==", x, v.splat(b, b.trunc(vals[1], v.I16), 64))
        return b.bitcast(same, v.I64)

    return types.uint64(types.intp, types.int64), codegen


@intrinsic
def above_one(typingctx, address):
    """Bit i: whether byte i of the 64 at an address is above 1."""

    def codegen(ctx, b, sig, vals):
        x = read(b, at(b, vals[0]), v.vty(v.I8, 64))
        return b.bitcast(b.icmp_unsigned(">", x, v.const(x.type, 1)), v.I64)

    return types.uint64(types.intp), codegen


@jit
def project(rows, n_in, planes, n_panels, signs):
    """The signs of 4 vectors' products with all planes, as bits.

    rows float32[4, ...]; planes: address of float32 [panel][n_in][16]; signs uint8[4, ...].
    Each product is summed in the order of the elements.
    """
    x, to = rows.ctypes.data, signs.ctypes.data
    row, line = 4 * rows.shape[1], signs.shape[1]
    for panel in range(n_panels):
        a = b = c = d = set_f32(0.0)
        w = planes + panel * n_in * 4 * LANES
        for e in range(n_in):
            plane, at_e = load_f32(w, 4 * LANES * e), 4 * e
            a = fma(plane, bcast_f32(x, at_e), a)
            b = fma(plane, bcast_f32(x, row + at_e), b)
            c = fma(plane, bcast_f32(x, 2 * row + at_e), c)
            d = fma(plane, bcast_f32(x, 3 * row + at_e), d)
        store(to, 2 * panel, _signs(a))
        store(to, line + 2 * panel, _signs(b))
        store(to, 2 * line + 2 * panel, _signs(c))
        store(to, 3 * line + 2 * panel, _signs(d))


@jit
def code_in(signs, table, bits):
    """The code of a table from a row of signs; at most 16 bits, so that 32 hold it in any place."""
    first = table * bits
    word = np.int64(load_u32(signs, first >> 3)) >> (first & 7)
    return word & ((1 << bits) - 1)


@jit
def area_of(items, segment, j, item_bytes):
    """Address of the tables of KV head j in a segment."""
    return items[segment] + j * SEGMENT * item_bytes


@jit
def _read_centred(keys, t, j, x):
    """Key of token t and KV head j less the centre, into x float32[padded]."""
    read_stored_key(keys.segments, j, t, keys.layout, address(x))
    for i in range(keys.centre.shape[1]):
        x[i] -= keys.centre[j, i]


@kernel
def hash_keys_kernel(
    share: Share, keys: Keys, tables: Shape, n_kv_heads: int, first: int, stop: int
):
    """Write the codes of tokens first .. stop-1, each in its open segment.

    2 E K L operations a key.
    """
    work, planes = of_thread(keys.work, share.part), keys.planes
    begin, end = first * n_kv_heads, stop * n_kv_heads
    at = begin + _ROWS * take(share.ticket)
    while at < end:
        for base in range(at, min(at + _ROWS, end), _TOGETHER):
            n = min(_TOGETHER, end - base)
            for r in range(n):
                row = base + r
                _read_centred(keys, row // n_kv_heads, row % n_kv_heads, work.rows[r])
            project(work.rows, planes.shape[1], address(planes), planes.shape[0], work.signs)
            for r in range(n):
                t, j = (base + r) // n_kv_heads, (base + r) % n_kv_heads
                to = area_of(keys.items, t // SEGMENT, j, tables.item_bytes) + 2 * (t % SEGMENT)
                signs = address(work.signs[r])
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
def sort_kernel(share: Share, runs: Runs, tables: Shape, n_kv_heads: int, first: int, stop: int):
    """Sort the codes of the full runs first .. stop-1 into tables."""
    item = take(share.ticket)
    while item < (stop - first) * n_kv_heads:
        run, j = first + item // n_kv_heads, item % n_kv_heads
        codes, ends = runs.codes[share.part], runs.ends[share.part]
        _take_codes(runs.items, run, j, tables, codes)
        for table in range(tables.number):
            place = table_of(runs.items, run, table, j, tables)
            _sort_table(codes[table * RUN : (table + 1) * RUN], place, tables, ends)
        item = take(share.ticket)


@kernel
def hash_rows_kernel(share: Share, rows: Rows, tables: Shape):
    """The codes of the rows of q."""
    work, planes, q = of_thread(rows.work, share.part), rows.planes, rows.q
    n_rows = q.shape[1]
    base = _TOGETHER * take(share.ticket)
    while base < n_rows:
        n = min(_TOGETHER, n_rows - base)
        for r in range(n):
            for e in range(q.shape[2]):
                work.rows[r, e] = q[0, base + r, e]
        project(work.rows, planes.shape[1], address(planes), planes.shape[0], work.signs)
        for r in range(n):
            signs = address(work.signs[r])
            for table in range(tables.number):
                rows.codes[base + r, table] = code_in(signs, table, tables.bits)
        base = _TOGETHER * take(share.ticket)
