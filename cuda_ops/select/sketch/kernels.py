"""Kernels that choose by estimates and exact products, in five launches whatever the length.

prepare  of each query head: its rows and tables, and a cost that a sample says enough reach
scan     estimates of a segment for the heads that share a pass; those that reach their head's cost
         become its candidates. Reads all sketches, which is the cost of it all
narrow   the best `n_candidates` of each head, exactly; what any head of a pass has is listed. Where
         the sample promised too much, all tokens are looked at again
rerank   exact products of the listed tokens with all heads of the pass
settle   the k best of each head; their bits are set

among int32 (5,) on the GPU: first, last, stop, k, n_candidates; see `lists`.
"""

import triton
import triton.language as tl

from ...attention.tiles import rotated, tile_of
from ..best import cost_and_position, counted, decided, entry_of, is_best
from ..dense import dense, put
from ..lists import choose_tokens, start_list
from .sums import cost_of, estimate, fill_tables, head_sums, pair_sums

SAMPLE = 2048
ENOUGH = 8192  # tokens from which on a sample is worth it


@triton.jit
def _wanted(among, most):
    """(first, tokens that compete, k, candidates of a head), as many as there are room for."""
    first, k = tl.load(among), tl.load(among + 3)
    n = tl.maximum(tl.load(among + 1) - first, 0)
    few = tl.minimum(tl.load(among + 4), n)
    return first, n, tl.minimum(k, n), tl.minimum(few, most)


@triton.jit
def _item(position, j, J):
    return ((position // 1024).to(tl.int64) * J + j) * 1024 + position % 1024


@triton.jit
def prepare_kernel(
    q, rotation, bits, factors, among, rows, work, tables, limits, n_found, n_listed, most,
    J: tl.constexpr, G: tl.constexpr, T: tl.constexpr, HEADS: tl.constexpr, BITS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCKS: tl.constexpr, STORED: tl.constexpr, K_KIND: tl.constexpr,
    ROTATION: tl.constexpr, LOG: tl.constexpr, FACTOR: tl.constexpr, RANGE: tl.constexpr,
    SAMPLE: tl.constexpr, ENOUGH: tl.constexpr,
):  # fmt: skip
    """Of query head h: rows (H, 32 STORED), tables (see `sums`), limits uint32 as int32 (H,)."""
    h = tl.program_id(0)
    j, p, g = h // G, h // T, h % T
    e = tl.arange(0, 32 * BLOCKS)
    x = tl.load(q + h * HEAD_DIM + e, e < HEAD_DIM, 0.0)[None, :]
    line = work + h * (2 * BITS) + tl.zeros((1,), tl.int32)
    put(line, x, 32 * BLOCKS)
    put(line + BITS, dense(line, 1, rotation, BITS, BITS), BITS)
    stored = rotated(x, ROTATION, LOG, FACTOR) if K_KIND == 2 else x
    tl.store(rows + h * (32 * STORED) + e[None, :], stored, (e < 32 * STORED)[None, :])
    table = tables + p * (BITS // 4 * 16 * HEADS) + g
    pad = tl.where(g == T - 1, HEADS - T, 0)
    fill_tables(work + h * (2 * BITS) + BITS, table, pad, HEADS, BITS, RANGE)
    tl.debug_barrier()
    tl.store(n_found + h, 0)
    tl.store(n_listed + p, 0)  # by each head of the pass
    first, n, _, few = _wanted(among, most)
    limit = tl.full((), 0xFFFFFFFF, tl.uint32)
    if n >= ENOUGH:
        run: tl.constexpr = SAMPLE // 64
        i = tl.arange(0, SAMPLE)
        item = _item(first + i // run * ((n - run) // 63) + i % run, j, J)
        sums = head_sums(bits, item, i < SAMPLE, table, HEADS, BITS)
        cost = cost_of(estimate(sums, factors, item, i < SAMPLE))
        wanted = few.to(tl.float32) * SAMPLE / n.to(tl.float32)
        need = tl.minimum(wanted + 4.0 * tl.sqrt(wanted) + 1.0, SAMPLE).to(tl.int32)
        limit = tl.zeros((), tl.uint32)
        for digit in tl.static_range(2):  # the leading half of a cost will do
            own, same = counted(cost, i, 0, i < SAMPLE, digit, limit, limit)
            digits = tl.histogram(own, 256, same)
            need, _ties, limit, _unused = decided(digits, need, digit, limit, limit)
        limit |= 0xFFFF
    tl.store(limits + h, limit.to(tl.int32, bitcast=True))


@triton.jit
def scan_kernel(
    bits, factors, tables, among, limits, marks, chosen, totals, found, n_found, room,
    T: tl.constexpr, PASSES: tl.constexpr, PAIRS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """found int64 (H, room): entries of a segment's tokens that reach the limit of a head.

    Begins the bitmaps of the segment: marks (J, passes, segments, 32) of candidates, and the list.
    """
    segment, j, p = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n_segments, J = tl.num_programs(0), tl.num_programs(1)
    first, last, stop = tl.load(among), tl.load(among + 1), tl.load(among + 2)
    if segment * 1024 >= stop:
        return
    t = tl.arange(0, 1024)
    position = segment * 1024 + t
    item = (segment * J + j).to(tl.int64) * 1024 + t
    table = tables.to(tl.pointer_type(tl.int32))
    table += (j * PASSES + p) * (BITS // 4 * 16 * PAIRS)
    sums = pair_sums(bits, item, table, PAIRS, BITS)
    competes = (position >= first) & (position < last)
    factor = tl.load(factors + item).to(tl.float32)
    for g in tl.static_range(T):
        h = (j * PASSES + p) * T + g
        own = (sums[g // 2] >> (16 * (g % 2))) & 0xFFFF
        cost = cost_of((tl.maximum(own, 1) - 128).to(tl.float32) * factor)
        near = competes & (cost <= tl.load(limits + h).to(tl.uint32, bitcast=True))
        slot = tl.atomic_add(n_found + h + tl.zeros((1024,), tl.int32), 1, near, sem="relaxed")
        to = found + h.to(tl.int64) * room + slot
        tl.store(to, entry_of(cost, position), near & (slot < room))
    at = (j * PASSES + p) * n_segments + segment
    tl.store(marks + at * 32 + tl.arange(0, 32), tl.zeros((32,), tl.int32))
    if p == 0:
        start_list(chosen, totals, j, segment, n_segments, first, last, stop)


@triton.jit
def _candidate(
    found, i, n, lacks, bits, factors, table, first, j, J: tl.constexpr, HEADS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """(cost, position) of candidates i < n of a head: entries, or all tokens if it lacks some."""
    listed = i < n
    if lacks:
        position = first + i
        item = _item(position, j, J)
        sums = head_sums(bits, item, listed, table, HEADS, BITS)
        cost = cost_of(estimate(sums, factors, item, listed))
    else:
        cost, position = cost_and_position(tl.load(found + i, listed, 0))
    return cost, position


@triton.jit
def narrow_kernel(
    bits, factors, tables, among, marks, found, n_found, listed, n_listed, seed, n_segments, room,
    list_room, most, J: tl.constexpr, G: tl.constexpr, T: tl.constexpr, HEADS: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """listed int32 (passes, list_room): the candidates of one query head, where they are new."""
    h = tl.program_id(0)
    j, p = h // G, h // T
    first, n, _, need = _wanted(among, most)
    count, line = tl.load(n_found + h), found + h.to(tl.int64) * room
    lacks = (count < need) | (count > room)
    count = tl.where(lacks, n, count)
    table = tables + p * (BITS // 4 * 16 * HEADS) + h % T
    worst, limit = tl.zeros((), tl.uint32), tl.zeros((), tl.uint32)
    ties = need + 1
    for digit in range(9):  # the last time they are listed
        if (ties > need) | (digit == 8):
            digits = tl.zeros((256,), tl.int32)
            for begin in range(0, count, BLOCK):
                i = begin + tl.arange(0, BLOCK)
                cost, position = _candidate(
                    line, i, count, lacks, bits, factors, table, first, j, J, HEADS, BITS
                )
                if digit < 8:
                    own, same = counted(cost, position, seed, i < count, digit, worst, limit)
                    digits += tl.histogram(own, 256, same)
                else:
                    fits = is_best(cost, position, seed, worst, limit) & (i < count)
                    _list(marks, listed, n_listed, p, n_segments, list_room, position, fits)
            if digit < 8:
                need, ties, worst, limit = decided(digits, need, digit, worst, limit)


@triton.jit
def _list(marks, listed, n_listed, p, n_segments, list_room, position, fits):
    """List the positions that fit and are not marked yet, and mark them."""
    bit = tl.full(position.shape, 1, tl.int32) << (position % 32)
    old = tl.atomic_or(marks + (p * n_segments * 32 + position // 32), bit, fits, sem="relaxed")
    fresh = fits & ((old & bit) == 0)
    place = n_listed + p + tl.zeros(position.shape, tl.int32)
    slot = tl.atomic_add(place, 1, fresh, sem="relaxed")
    tl.store(listed + p.to(tl.int64) * list_room + slot, position, fresh & (slot < list_room))


@triton.jit
def _halves(row, scale, b, KIND: tl.constexpr):
    """Block b of rows (n,) as they are stored: its two halves (n, 16), float32."""
    e = tl.arange(0, 16)[None, :]
    if KIND == 0:
        at = row.to(tl.pointer_type(tl.float16))[:, None] + (32 * b + e)
        x, y = tl.load(at).to(tl.float32), tl.load(at + 16).to(tl.float32)
    elif KIND == 1:
        at = row.to(tl.pointer_type(tl.int8))[:, None] + (32 * b + e)
        x, y = tl.load(at).to(tl.float32), tl.load(at + 16).to(tl.float32)
    else:
        both = tl.load(row[:, None] + (16 * b + e)).to(tl.int32)
        x, y = ((both & 15) - 8).to(tl.float32), ((both >> 4) - 8).to(tl.float32)
    if KIND > 0:
        d = tl.load(scale.to(tl.pointer_type(tl.float16)) + b).to(tl.float32)[:, None]
        x, y = x * d, y * d
    return x, y


@triton.jit
def _lanes_summed(x):
    """Sums of 16 lanes (n, 16): lanes 8 apart, 4 apart, then neighbours, as AVX-512 adds them."""
    n: tl.constexpr = x.shape[0]
    a, b = tl.split(tl.permute(tl.reshape(x, (n, 2, 8)), (0, 2, 1)))
    a, b = tl.split(tl.permute(tl.reshape(a + b, (n, 2, 4)), (0, 2, 1)))
    a, b = tl.split(tl.reshape(a + b, (n, 2, 2)))
    a, b = tl.split(a + b)
    return a + b


@triton.jit
def rerank_kernel(
    kv, rows, listed, n_listed, scored, list_room, J: tl.constexpr, TILE_BYTES: tl.constexpr,
    K_ROW: tl.constexpr, SCALES_AT: tl.constexpr, SCALES_ROW: tl.constexpr, K_KIND: tl.constexpr,
    STORED: tl.constexpr, T: tl.constexpr, PASSES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """scored int64 (H, list_room): entries of q . k of TOKENS listed tokens for heads of a pass.

    16 sums for each product, one after the other by fused multiplications: the order of `ops` with
    AVX-512, whose bits these are.
    """
    p = tl.program_id(1)
    n = tl.minimum(tl.load(n_listed + p), list_room)
    if tl.program_id(0) * TOKENS >= n:
        return
    i = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    position = tl.load(listed + p.to(tl.int64) * list_room + tl.minimum(i, n - 1))
    at_tile, r = tile_of(position, p // PASSES, J, TILE_BYTES)
    tile = kv + at_tile
    row, scale = tile + r * K_ROW, tile + SCALES_AT + r * SCALES_ROW
    e = tl.arange(0, 16)[None, :]
    none = tl.zeros((TOKENS, 16), tl.float32) * -1.0  # tl.full(…, -0.0) would be +0
    sums = ()
    for _ in tl.static_range(T):  # plus -0 a product has the bits that it has alone
        sums = sums + (none,)
    for b in range(STORED):
        halves = _halves(row, scale, b, K_KIND)
        new = ()
        for g in tl.static_range(T):
            query = rows + (p * T + g) * (32 * STORED) + 32 * b + e
            x = tl.broadcast_to(tl.load(query), (TOKENS, 16))
            total = tl.fma(halves[0], x, sums[g])
            x = tl.broadcast_to(tl.load(query + 16), (TOKENS, 16))
            new = new + (tl.fma(halves[1], x, total),)
        sums = new
    for g in tl.static_range(T):
        entry = entry_of(cost_of(_lanes_summed(sums[g])), position)
        tl.store(scored + (p * T + g).to(tl.int64) * list_room + i, entry, i < n)


@triton.jit
def settle_kernel(
    scored, n_listed, among, chosen, totals, seed, n_segments, list_room, most, G: tl.constexpr,
    T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the bits of the k best of one query head, among the candidates of its pass."""
    h = tl.program_id(0)
    n = tl.minimum(tl.load(n_listed + h // T), list_room)
    _, _, need, _ = _wanted(among, most)
    need = tl.minimum(need, n)
    line = scored + h.to(tl.int64) * list_room
    worst, limit = tl.zeros((), tl.uint32), tl.zeros((), tl.uint32)
    ties = need + 1
    for digit in range(8):
        if ties > need:
            digits = tl.zeros((256,), tl.int32)
            for begin in range(0, n, BLOCK):
                i = begin + tl.arange(0, BLOCK)
                cost, position = cost_and_position(tl.load(line + i, i < n, 0))
                own, same = counted(cost, position, seed, i < n, digit, worst, limit)
                digits += tl.histogram(own, 256, same)
            need, ties, worst, limit = decided(digits, need, digit, worst, limit)
    for begin in range(0, n, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        cost, position = cost_and_position(tl.load(line + i, i < n, 0))
        fits = is_best(cost, position, seed, worst, limit) & (i < n)
        choose_tokens(chosen, totals, h // G, n_segments, position, fits)
