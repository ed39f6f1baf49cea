"""The best estimates of q . k among blocks of similar keys, most of which are never scanned.

    estimate  q . mean_b + factor * sum of sign(y_i) (R q)_i,  y = R (k - mean_b), k of block b; but
              never more than the bound of its block:
    bound_b   q . mean_b + REACH * |q| * spread_b / sqrt(head_dim)

A block whose bound is below a query's limit is ruled out without reading its sketches. The keys of
a block stand spread_b / sqrt(head_dim) off its mean in a random direction (one standard deviation);
a key that is more than REACH of these above the mean is missed if its block is ruled out. But as
the bound caps all estimates, the choice does not depend on which blocks happened to be ruled out:
it is that of the largest min(estimate, bound) of all keys.
"""

import numpy as np
from numba import types
from numba.extending import intrinsic

from ....jit import simd as v
from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address, of_thread
from ....jit.simd import at, read, write
from ...attention.layout import SEGMENT
from ...attention.shape import VEC, shape_of
from ..best import entry_of, make_room
from ..choice import Range, Wanted
from ..lookup import BYTES, add_saturated, look_up
from ..masks import bit_count, bits_of, kind_of, low_bit
from ..prefetch import prefetch_lines
from ..queries import prepare_query
from ..scores import at_least, cost_of
from ..sketch.choose import make_choose
from .arguments import Query, Scratch
from .layout import BLOCK, BLOCKS, offsets_of
from .order import token_at

REACH = 4.0
DIMENSIONS = 16  # whose products with 16 means are summed in registers
_offsets = jit(offsets_of)


@intrinsic
def add_means(typingctx, kind, means, queries, sums):
    """sums[query][16 blocks] += products of 16 dimensions; addresses all.

    means i8 [16][32], queries f32 [query][bits], sums f32 [query][32].
    """

    def codegen(ctx, b, sig, vals):
        means, queries, sums = (at(b, x) for x in vals[1:])
        total = [read(b, sums, VEC, 4 * BLOCKS * h) for h in range(kind.queries)]
        for d in range(DIMENSIONS):
            x = b.sitofp(read(b, means, v.vty(v.I8, 16), BLOCKS * d), VEC)
            for h in range(kind.queries):
                q = v.splat(b, read(b, queries, v.F32, 4 * (h * kind.bits + d)), 16)
                total[h] = v.fmuladd(b, x, q, total[h])
        for h, x in enumerate(total):
            write(b, x, sums, 4 * BLOCKS * h)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen


@intrinsic
def signed_sums(typingctx, kind, bits, table, sums):
    """sums i8 [32 tokens] = sums over half bytes of the query's table, each addition
    saturated; addresses all."""

    def codegen(ctx, b, sig, vals):
        bits, table, sums = (at(b, x) for x in vals[1:])
        total = v.const(BYTES, 0)
        for i in range(kind.bits // 8):
            plane = read(b, bits, BYTES, BLOCK * i)
            halves = b.and_(plane, v.const(BYTES, 15)), b.lshr(plane, v.const(BYTES, 4))
            for half, x in enumerate(halves):
                entries = read(b, table, v.vty(v.I8, 16), 16 * (2 * i + half))
                total = add_saturated(b, total, look_up(b, entries, x))
        write(b, total, sums)
        return ctx.get_dummy_value()

    n = types.intp
    return types.void(kind, n, n, n), codegen


@jit
def _rule_out(kind, part, later, limits, buffer, scan):
    """Write q . mean, the bound and the mask of each block of a segment for each query.

    part, later: addresses of a KV head's part of the segment, and of the next one, whose means are
    prefetched.
    """
    bits, n, masks = bits_of(kind), len(scan.reach), scan.masks
    offsets = _offsets(bits)
    queries, mean_scores = address(scan.queries), address(scan.mean_scores[buffer])
    bounds = address(scan.bounds[buffer])
    for i in range(0, 4 * BLOCKS * n, 64):
        v.store(mean_scores, i, v.set_f32(0.0))
    for d in range(0, bits, DIMENSIONS):
        means, q = part + offsets.means + BLOCKS * d, queries + 4 * d
        prefetch_lines(later, offsets.means + BLOCKS * d, BLOCKS * DIMENSIONS)
        add_means(kind, means, q, mean_scores)
        add_means(kind, means + 16, q, mean_scores + 64)
    prefetch_lines(later, offsets.scales, 8 * BLOCKS)
    scales, spreads = part + offsets.scales, part + offsets.spreads
    for h in range(n):
        masks[buffer, h] = 0
        for half in range(2):
            line, i = 64 * half, 4 * BLOCKS * h + 64 * half
            score = v.load_f32(mean_scores, i) * v.load_f32(scales, line)
            spread = v.load_f32(spreads, line)
            v.store(mean_scores, i, score)
            v.store(bounds, i, v.fma(spread, v.set_f32(scan.reach[h]), score))
            masks[buffer, h] |= at_least(bounds + i, limits[h]) << np.uint64(16 * half)


@jit
def _prefetch_blocks(bits, part, masks):
    """Prefetch the blocks in any query's mask; returns how many bits all masks have."""
    offsets, blocks, n = _offsets(bits), np.uint64(0), 0
    for mask in masks:
        blocks |= mask
        n += bit_count(mask)
    while blocks:
        block = low_bit(blocks)
        blocks &= blocks - np.uint64(1)
        for line in range(0, BLOCK * bits // 8, 64):
            v.prefetch(part, BLOCK * bits // 8 * block + line)
        v.prefetch(part, offsets.factors + 2 * BLOCK * block)
        v.prefetch(part, offsets.order + 2 * BLOCK * block)
    return n


@jit
def _collect(kind, part, segment, among, buffer, h, scratch):
    """Append the tokens of the blocks in query h's mask whose estimates reach its limit.

    part: address of the KV head's part of the segment.
    """
    bits, scan, candidates = bits_of(kind), scratch.scan, scratch.search.candidates
    entries, n, limit = candidates.entries, candidates.counts[h], candidates.limits[h]
    table, unit, blocks = address(scratch.search.tables[h]), scan.units[h], scan.masks[buffer, h]
    mean_scores, bounds = address(scan.mean_scores[buffer, h]), address(scan.bounds[buffer, h])
    offsets, sums = _offsets(bits), address(scan.sums)
    estimates = sums + 64
    while blocks:
        block = low_bit(blocks)
        blocks &= blocks - np.uint64(1)
        signed_sums(kind, part + BLOCK * bits // 8 * block, table, sums)
        hits = np.uint64(0)
        for t in range(0, BLOCK, 16):
            factor = v.load_f16(part, offsets.factors + 2 * (BLOCK * block + t))
            estimate = v.load_i8_f32(sums, t) * v.set_f32(unit) * factor
            estimate = estimate + v.bcast_f32(mean_scores, 4 * block)
            estimate = v.vmin(estimate, v.bcast_f32(bounds, 4 * block))
            v.store(estimates, 4 * t, estimate)
            hits |= at_least(estimates + 4 * t, limit) << np.uint64(t)
        while hits:
            t = low_bit(hits)
            hits &= hits - np.uint64(1)
            token = token_at(part + offsets.order, BLOCK * block + t)
            position = segment * SEGMENT + token
            entries[h, n] = entry_of(cost_of(np.uint64(v.load_u32(estimates, 4 * t))), position)
            n += among.first <= position < among.last
    candidates.counts[h] = n


@jit
def _scan(kind, query, j, among, wanted, scratch, begin, end):
    """Add the segments begin .. end-1 of the order to the candidates, see `make_choose`.

    A segment's blocks are scanned after the next one's means: they have then arrived from memory.
    """
    candidates, order, items = scratch.search.candidates, scratch.search.order, query.keys.items
    bits, scanned, scan = bits_of(kind), 0, scratch.scan
    offset = j * _offsets(bits).end
    room = min(candidates.entries.shape[1], 2 * wanted.n_candidates + 4 * SEGMENT)
    for i in range(begin, end + 1):
        buffer = i & 1
        if i < end:
            part = items[order[i]] + offset
            later = items[order[min(i + 1, end - 1)]] + offset
            _rule_out(kind, part, later, candidates.limits, buffer, scan)
            scanned += _prefetch_blocks(bits, part, scan.masks[buffer])
        if i > begin:
            done = order[i - 1]
            for h in range(len(candidates.counts)):
                _collect(kind, items[done] + offset, done, among, 1 - buffer, h, scratch)
                make_room(h, wanted.n_candidates, wanted.seed, candidates, room)
    return scanned


@jit
def _prepare(kind, query, head, h, scratch):
    """Make what the scan needs of query head `head`: the query itself, its tables and its reach."""
    scan, padded, square = scratch.scan, scratch.search.rotated[0], np.float32(0.0)
    scan.units[h] = prepare_query(kind, query, head, h, scratch.search)
    for i in range(query.q.shape[2]):
        scan.queries[h, i] = padded[i]
        square += padded[i] * padded[i]
    scan.reach[h] = np.float32(REACH) * np.sqrt(square / np.float32(query.q.shape[2]))


_choose = make_choose(_prepare, _scan)


def make_blocks(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @kernel
    def blocks_kernel(
        share: Share, query: Query, memory: Scratch, n_kv_heads: int, among: Range, wanted: Wanted
    ):
        """Lists as the Hamming scan's. For every `together` queries reads bits / 32 + 0.25 bytes a
        token and KV head, bits / 8 + 4 a token of each block that is scanned, and the K rows of the
        candidates."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        scratch = of_thread(memory, share.part)
        # The open segment has no blocks yet.
        indexed = max(among.first, min(among.last, among.stop // SEGMENT * SEGMENT))
        j = take(share.ticket)
        while j < n_kv_heads:
            query.scanned[j] = _choose(shape, kind, query, j, among, indexed, wanted, scratch)
            j = take(share.ticket)

    return blocks_kernel
