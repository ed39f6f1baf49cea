"""The best estimates of q . k among blocks of similar keys, most of which are never looked at.

    k of block b:  q . k  is estimated by  q . mean_b + factor * sum of sign(y_i) (R q)_i,
                   y = R (k - mean_b), and never by more than
    bound_b      = q . mean_b + REACH * |q| * spread_b / sqrt(head_dim)

A key that stands REACH standard deviations above its block's mean, seen from a random direction,
is found with the rest of the block or not at all: a block whose bound is below what is needed
is ruled out by its mean alone. As the bound caps the estimates, the choice is that of all keys'
min(estimate, bound), whatever was ruled out on the way.
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
from ..masks import bit_count, bits_of, kind_of, low_bit
from ..queries import make_query_tables, pack_queries
from ..scores import at_least, cost_of, score_of
from ..sketch.arguments import Wanted
from .arguments import Query, Scratch
from .layout import BLOCK, BLOCKS
from .offsets import factors_at, head_bytes, means_at, order_at, scales_at
from .sums import DIMENSIONS, add_means, signed_sums

REACH = 4.0


@jit
def _rule_out(kind, part, ahead, limits, turn, scan):
    """scan.wanted[turn, query]: a bit for each block of a segment that can reach the query's limit.

    part, ahead: addresses of a KV head's part of the segment and of the next one, whose means are
    asked for. Writes q . mean and the bound of each block.
    """
    bits, n, wanted = bits_of(kind), len(scan.reach), scan.wanted
    queries, centres = address(scan.queries), address(scan.centres[turn])
    bounds = address(scan.bounds[turn])
    for i in range(0, 4 * BLOCKS * n, 64):
        v.store(centres, i, v.set_f32(0.0))
    for d in range(0, bits, DIMENSIONS):
        means, q = part + means_at(bits) + BLOCKS * d, queries + 4 * d
        for line in range(0, BLOCKS * DIMENSIONS, 64):
            v.prefetch_l1(ahead, means_at(bits) + BLOCKS * d + line)
        add_means(kind, means, q, centres)
        add_means(kind, means + 16, q, centres + 64)
    for line in range(0, 8 * BLOCKS, 64):
        v.prefetch_l1(ahead, scales_at(bits) + line)
    scales = part + scales_at(bits)
    for h in range(n):
        wanted[turn, h] = 0
        for half in range(2):
            line, i = 64 * half, 4 * BLOCKS * h + 64 * half
            centre = v.load_f32(centres, i) * v.load_f32(scales, line)
            spread = v.load_f32(scales, 4 * BLOCKS + line)
            v.store(centres, i, centre)
            v.store(bounds, i, v.fma(spread, v.set_f32(scan.reach[h]), centre))
            wanted[turn, h] |= at_least(bounds + i, limits[h]) << np.uint64(16 * half)


@jit
def _ask_for(bits, part, turn, wanted):
    """Ask for the blocks of a segment that any query wants; gives how many times one is wanted."""
    some, n = np.uint64(0), 0
    for h in range(wanted.shape[1]):
        some |= wanted[turn, h]
        n += bit_count(wanted[turn, h])
    while some:
        block = low_bit(some)
        some &= some - np.uint64(1)
        for line in range(0, BLOCK * bits // 8, 64):
            v.prefetch(part, BLOCK * bits // 8 * block + line)
        v.prefetch(part, factors_at(bits) + 2 * BLOCK * block)
        v.prefetch(part, order_at(bits) + 2 * BLOCK * block)
    return n


@jit
def _collect(kind, part, segment, among, turn, h, mine):
    """Append the tokens of query h's wanted blocks whose estimates reach its limit.

    part: address of the KV head's part of the segment.
    """
    bits, scan, found = bits_of(kind), mine.scan, mine.found
    entries, n, limit = found.entries, found.counts[h], found.limits[h]
    table, unit, wanted = address(mine.tables[h]), scan.units[h], scan.wanted[turn, h]
    centres, bounds = address(scan.centres[turn, h]), address(scan.bounds[turn, h])
    sums = address(scan.sums)
    places = sums + 64
    while wanted:
        block = low_bit(wanted)
        wanted &= wanted - np.uint64(1)
        signed_sums(kind, part + BLOCK * bits // 8 * block, table, sums)
        some = np.uint64(0)
        for t in range(0, BLOCK, 16):
            factor = v.load_f16(part, factors_at(bits) + 2 * (BLOCK * block + t))
            estimate = v.load_i8_f32(sums, t) * v.set_f32(unit) * factor
            estimate = estimate + v.bcast_f32(centres, 4 * block)
            estimate = v.vmin(estimate, v.bcast_f32(bounds, 4 * block))
            v.store(places, 4 * t, estimate)
            some |= at_least(places + 4 * t, limit) << np.uint64(t)
        while some:
            t = low_bit(some)
            some &= some - np.uint64(1)
            token = np.int64(v.load_u16(part, order_at(bits) + 2 * (BLOCK * block + t)))
            position = segment * SEGMENT + token
            cost = cost_of(np.uint64(v.load_u32(places, 4 * t)))
            entries[h, n] = (cost << np.uint64(32)) | np.uint64(position)
            n += among.first <= position < among.last
    found.counts[h] = n


@jit
def _scan(kind, query, j, among, wanted, mine, begin, end):
    """The best estimates among what was found and what the segments begin .. end-1 have, per query.

    begin, end: of `mine.order`. Blocks of a segment are looked at when the next one's means have
    been: they are then on their way from memory. Gives how many, for each query.
    """
    found, order, bits, looked = mine.found, mine.order, bits_of(kind), 0
    offset = j * head_bytes(bits)
    most = min(found.entries.shape[1], 2 * wanted.few + 4 * SEGMENT)
    for i in range(begin, end + 1):
        turn = i & 1
        if i < end:
            part = query.items[order[i]] + offset
            ahead = query.items[order[min(i + 1, end - 1)]] + offset
            _rule_out(kind, part, ahead, found.limits, turn, mine.scan)
            looked += _ask_for(bits, part, turn, mine.scan.wanted)
        if i > begin:
            done = order[i - 1]
            for h in range(len(found.counts)):
                _collect(kind, query.items[done] + offset, done, among, 1 - turn, h, mine)
                if found.counts[h] + SEGMENT > most:
                    worst = prune_scores(h, wanted.few, wanted.seed, found)
                    found.limits[h] = score_of(worst)
    return looked


_gather = make_gather(_scan)


@jit
def _prepare(kind, query, head, h, mine):
    """What the scan needs of query head `head`: the query itself, its table and its reach."""
    q, bits, scan, turned = query.q, bits_of(kind), mine.scan, mine.turned
    square = np.float32(0.0)
    turned[0, :] = 0.0
    for i in range(q.shape[2]):
        x = q[0, head, i]
        turned[0, i] = scan.queries[h, i] = x
        square += x * x
    weights = address(query.rotation)
    bias = weights + 4 * bits * bits
    dense(address(turned[0]), bits, weights, bias, bits, address(turned[1]))
    scan.units[h] = make_query_tables(turned[1], bits, mine.tables[h])
    scan.reach[h] = np.float32(REACH) * np.sqrt(square / np.float32(q.shape[2]))


@jit
def _choose(shape, kind, query, j, n_kv_heads, among, wanted, mine):
    """The list of one KV head; gives its length and how many blocks were looked at.

    Tokens of the open segment, which has no blocks yet, are candidates all.
    """
    found, chosen, rows = mine.found, mine.chosen, mine.products.rows
    group, together, looked = query.q.shape[1] // n_kv_heads, len(found.counts), 0
    unordered = max(among.first, min(among.last, among.stop // SEGMENT * SEGMENT))
    ordered = Range(among.first, unordered, among.stop)
    pack_queries(query.q, j, group, of.rotation(shape) if of.rotates_k(shape) else 0, rows)
    clear(chosen, among.stop)
    for g in range(0, group, together):
        for h in range(together):
            _prepare(kind, query, j * group + g + h, h, mine)
        clear(found.marks, among.stop)
        if unordered > among.first:
            looked += _gather(kind, query, j, ordered, wanted, mine)
            for h in range(together):
                mark(found.entries[h], found.counts[h], found.marks)
        n = write_list(found.marks, among.first, unordered, among.last, mine.listed)
        listed = mine.listed[among.first : n]
        rerank(
            shape, query.segments, j, listed, rows[g : g + together], mine.products, wanted.k,
            wanted.seed, found,
        )  # fmt: skip
        for w in range((among.last + 63) // 64):
            chosen[w] |= found.marks[w]
    return write_list(chosen, among.first, among.last, among.stop, query.lists[j]), looked


def make_blocks(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @kernel
    def blocks_kernel(
        share: Share,
        query: Query,
        scratch: Scratch,
        n_kv_heads: int,
        among: Range,
        wanted: Wanted,
    ):
        """Lists as the Hamming scan's. Reads bits / 32 + 0.25 bytes a token and KV head,
        bits / 8 + 4 of the tokens of each block that is looked at, and the K rows of the
        candidates."""
        shape, kind = of.shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        mine = of_thread(scratch, share.part)
        j = take(share.ticket)
        while j < n_kv_heads:
            query.counts[j], query.looked[j] = _choose(
                shape, kind, query, j, n_kv_heads, among, wanted, mine
            )
            j = take(share.ticket)

    return blocks_kernel
