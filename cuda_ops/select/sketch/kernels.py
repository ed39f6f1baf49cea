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

from dataclasses import dataclass

import triton
import triton.language as tl

from ...attention.tiles import F16, Q4_0, Q8_0, rotated, rows_at
from ..best import cost_and_position, counted, decided, entry_of, is_best, limits_of
from ..dense import dense, put
from ..lists import choose_tokens, start_list
from ..sample import SAMPLE, rank_in_sample, sampled
from .keys import item_of
from .sums import cost_of, estimate, fill_tables, head_sums, pair_sums


@dataclass(frozen=True)
class Passes:
    """Query heads: `group` share a KV head, `together` of them a pass over the sketches."""

    heads: int
    group: int
    together: int
    bits: int

    @property
    def number(self) -> int:
        """Passes of a KV head."""
        return self.group // self.together

    @property
    def pairs(self) -> int:
        return -(-self.together // 2)


@triton.jit
def _wanted(among, most):
    """(first, tokens that compete, k, candidates of a head), as many as there are room for."""
    first, k = tl.load(among), tl.load(among + 3)
    n = tl.maximum(tl.load(among + 1) - first, 0)
    few = tl.minimum(tl.load(among + 4), n)
    return first, n, tl.minimum(k, n), tl.minimum(few, most)


@triton.jit
def prepare_kernel(
    q, rotation, inverse, sketches, among, search, T: tl.constexpr, P: tl.constexpr,
    RANGE: tl.constexpr,
):  # fmt: skip
    """Rows, tables and limit of query head h."""
    h, queries, candidates = tl.program_id(0), search.queries, search.candidates
    j, p, g = h // P.group, h // P.together, h % P.together
    HEADS: tl.constexpr = 2 * P.pairs
    e, E, STORED = tl.arange(0, T.width), T.layout.head_dim, T.layout.padded
    x = tl.load(q + h * E + e, e < E, 0.0)[None, :]
    line = queries.work + h * (2 * P.bits) + tl.zeros((1,), tl.int32)
    put(line, x * tl.load(inverse + j * P.bits + e)[None, :], T.width)
    put(line + P.bits, dense(line, 1, rotation, P.bits, P.bits), P.bits)
    stored = rotated(x, T) if T.k_type == Q4_0 else x
    tl.store(queries.rows + h * STORED + e[None, :], stored, (e < STORED)[None, :])
    table = queries.tables + p * (P.bits // 4 * 16 * HEADS) + g
    pad = tl.where(g == P.together - 1, HEADS - P.together, 0)
    fill_tables(queries.work + h * (2 * P.bits) + P.bits, table, pad, HEADS, P.bits, RANGE)
    tl.debug_barrier()
    tl.store(candidates.counts + h, 0)
    tl.store(candidates.n_tokens + p, 0)  # by each head of the pass
    first, n, _, few = _wanted(among, candidates.k)
    limit = tl.full((), 0xFFFFFFFF, tl.uint32)
    need = rank_in_sample(few, n)
    if need <= SAMPLE:
        i, item = tl.arange(0, SAMPLE), item_of(sampled(first, n), j, P.heads)
        sums = head_sums(sketches.bits, item, i < SAMPLE, table, HEADS, P.bits)
        cost = cost_of(estimate(sums, sketches.factors, item, i < SAMPLE))
        limit = tl.zeros((), tl.uint32)
        for digit in tl.static_range(2):  # the leading half of a cost will do
            digits_of, same = counted(cost, i, 0, i < SAMPLE, digit, limit, limit)
            digits = tl.histogram(digits_of, 256, same)
            need, _ties, limit, _unused = decided(digits, need, digit, limit, limit)
        limit |= 0xFFFF
    tl.store(queries.limits + h, limit.to(tl.int32, bitcast=True))


@triton.jit
def scan_kernel(sketches, among, search, P: tl.constexpr):
    """Entries of a segment's tokens that reach the limit of a head; begins its bitmaps."""
    candidates, limits = search.candidates, search.queries.limits
    segment, j, number = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last, stop = tl.load(among), tl.load(among + 1), tl.load(among + 2)
    if segment * 1024 >= stop:
        return
    t, p = tl.arange(0, 1024), j * P.number + number
    position = segment * 1024 + t
    item = (segment * P.heads + j).to(tl.int64) * 1024 + t
    table = search.queries.tables.to(tl.pointer_type(tl.int32))
    table += p * (P.bits // 4 * 16 * P.pairs)
    sums = pair_sums(sketches.bits, item, table, P.pairs, P.bits)
    competes = (position >= first) & (position < last)
    factor = tl.load(sketches.factors + item).to(tl.float32)
    TOGETHER: tl.constexpr = P.together
    for g in tl.static_range(TOGETHER):
        h = p * P.together + g
        of_head = (sums[g // 2] >> (16 * (g % 2))) & 0xFFFF
        cost = cost_of((tl.maximum(of_head, 1) - 128).to(tl.float32) * factor)
        near = competes & (cost <= tl.load(limits + h).to(tl.uint32, bitcast=True))
        count = candidates.counts + h + tl.zeros((1024,), tl.int32)
        slot = tl.atomic_add(count, 1, near, sem="relaxed")
        to = candidates.entries + h.to(tl.int64) * candidates.room + slot
        tl.store(to, entry_of(cost, position), near & (slot < candidates.room))
    at = p * search.lists.n_segments + segment
    tl.store(candidates.marks + at * 32 + tl.arange(0, 32), tl.zeros((32,), tl.int32))
    if number == 0:
        start_list(search.lists, among, j, segment)


@triton.jit
def narrow_kernel(sketches, among, search, seed, P: tl.constexpr, BLOCK: tl.constexpr):
    """List the candidates of one query head, where they are new in its pass."""
    candidates, n_segments = search.candidates, search.lists.n_segments
    h = tl.program_id(0)
    p = h // P.together
    _, _, _, need = _wanted(among, candidates.k)
    count = tl.load(candidates.counts + h)
    line = candidates.entries + h.to(tl.int64) * candidates.room
    if (count < need) | (count > candidates.room):
        _narrow_all(sketches, among, search, seed, h, P, BLOCK // 2)
    else:
        room = candidates.list_room
        rest = candidates.scored + h.to(tl.int64) * room
        worst, limit = limits_of(line, count, need, seed, rest, room, BLOCK)
        for begin in range(0, count, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            cost, position = cost_and_position(tl.load(line + i, i < count, 0))
            fits = is_best(cost, position, seed, worst, limit) & (i < count)
            _list(candidates, p, n_segments, position, fits)


@triton.jit
def _narrow_all(sketches, among, search, seed, h, P: tl.constexpr, BLOCK: tl.constexpr):
    """The same among all tokens, where the sample promised too much."""
    j, p, candidates = h // P.group, h // P.together, search.candidates
    first, n, _, need = _wanted(among, candidates.k)
    table = search.queries.tables + p * (P.bits // 4 * 16 * 2 * P.pairs) + h % P.together
    worst, limit = tl.zeros((), tl.uint32), tl.zeros((), tl.uint32)
    ties = need + 1
    for digit in range(9):  # the last time they are listed
        if (ties > need) | (digit == 8):
            digits = tl.zeros((256,), tl.int32)
            for begin in range(0, n, BLOCK):
                i = begin + tl.arange(0, BLOCK)
                position = first + i
                item = item_of(position, j, P.heads)
                sums = head_sums(sketches.bits, item, i < n, table, 2 * P.pairs, P.bits)
                cost = cost_of(estimate(sums, sketches.factors, item, i < n))
                if digit < 8:
                    digits_of, same = counted(cost, position, seed, i < n, digit, worst, limit)
                    digits += tl.histogram(digits_of, 256, same)
                else:
                    fits = is_best(cost, position, seed, worst, limit) & (i < n)
                    _list(candidates, p, search.lists.n_segments, position, fits)
            if digit < 8:
                need, ties, worst, limit = decided(digits, need, digit, worst, limit)


@triton.jit
def _list(candidates, p, n_segments, position, fits):
    """List the positions that fit and are not marked yet, and mark them."""
    bit = tl.full(position.shape, 1, tl.int32) << (position % 32)
    word = candidates.marks + (p * n_segments * 32 + position // 32)
    old = tl.atomic_or(word, bit, fits, sem="relaxed")
    fresh = fits & ((old & bit) == 0)
    place = candidates.n_tokens + p + tl.zeros(position.shape, tl.int32)
    slot = tl.atomic_add(place, 1, fresh, sem="relaxed")
    to = candidates.tokens + p.to(tl.int64) * candidates.list_room + slot
    tl.store(to, position, fresh & (slot < candidates.list_room))


@triton.jit
def _halves(row, scale, b, TYPE: tl.constexpr):
    """Block b of rows (n,) as they are stored: its two halves (n, 16), float32."""
    e = tl.arange(0, 16)[None, :]
    if TYPE == F16:
        at = row.to(tl.pointer_type(tl.float16))[:, None] + (32 * b + e)
        x, y = tl.load(at).to(tl.float32), tl.load(at + 16).to(tl.float32)
    elif TYPE == Q8_0:
        at = row.to(tl.pointer_type(tl.int8))[:, None] + (32 * b + e)
        x, y = tl.load(at).to(tl.float32), tl.load(at + 16).to(tl.float32)
    else:
        both = tl.load(row[:, None] + (16 * b + e)).to(tl.int32)
        x, y = ((both & 15) - 8).to(tl.float32), ((both >> 4) - 8).to(tl.float32)
    if TYPE != F16:
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
def rerank_kernel(kv, search, T: tl.constexpr, P: tl.constexpr, TOKENS: tl.constexpr):
    """Entries with q . k of TOKENS listed tokens for the heads of a pass.

    16 sums for each product, one after the other by fused multiplications: the order of `ops` with
    AVX-512, whose bits these are.
    """
    p, candidates = tl.program_id(1), search.candidates
    n = tl.minimum(tl.load(candidates.n_tokens + p), candidates.list_room)
    if tl.program_id(0) * TOKENS >= n:
        return
    i = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    line = candidates.tokens + p.to(tl.int64) * candidates.list_room
    position = tl.load(line + tl.minimum(i, n - 1))
    row, _v, scale, _v_scale = rows_at(kv, position, p // P.number, T)
    e = tl.arange(0, 16)[None, :]
    none = tl.zeros((TOKENS, 16), tl.float32) * -1.0  # tl.full(…, -0.0) would be +0
    TOGETHER: tl.constexpr = P.together
    sums = ()
    for _ in tl.static_range(TOGETHER):  # plus -0 a product has the bits that it has alone
        sums = sums + (none,)
    for b in range(T.layout.blocks):
        halves = _halves(row, scale, b, T.k_type)
        new = ()
        for g in tl.static_range(TOGETHER):
            query = search.queries.rows + (p * P.together + g) * T.layout.padded + 32 * b + e
            x = tl.broadcast_to(tl.load(query), (TOKENS, 16))
            total = tl.fma(halves[0], x, sums[g])
            x = tl.broadcast_to(tl.load(query + 16), (TOKENS, 16))
            new = new + (tl.fma(halves[1], x, total),)
        sums = new
    for g in tl.static_range(TOGETHER):
        entry = entry_of(cost_of(_lanes_summed(sums[g])), position)
        line = (p * P.together + g).to(tl.int64) * candidates.list_room
        tl.store(candidates.scored + line + i, entry, i < n)


@triton.jit
def settle_kernel(among, search, seed, P: tl.constexpr, BLOCK: tl.constexpr):
    """Set the bits of the k best of one query head, among the candidates of its pass."""
    h, candidates = tl.program_id(0), search.candidates
    n = tl.minimum(tl.load(candidates.n_tokens + h // P.together), candidates.list_room)
    _, _, need, _ = _wanted(among, candidates.k)
    need = tl.minimum(need, n)
    line = candidates.scored + h.to(tl.int64) * candidates.list_room
    rest, room = candidates.entries + h.to(tl.int64) * candidates.room, candidates.room
    worst, limit = limits_of(line, n, need, seed, rest, room, BLOCK)
    for begin in range(0, n, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        cost, position = cost_and_position(tl.load(line + i, i < n, 0))
        fits = is_best(cost, position, seed, worst, limit) & (i < n)
        choose_tokens(search.lists, h // P.group, position, fits)
