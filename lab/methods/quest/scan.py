"""The tiles with the highest upper bounds of q . k, whose tokens are all taken.

    bound = sum over d of max(q_d least_d, q_d greatest_d)  >=  q . k for every key k of the tile

Where q_d is negative, the least counts, else the greatest: of each dimension one side of the boxes
is read. Source: Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM
Inference", 2024, section 3.3.
"""

import numpy as np

from kvarn.jit import simd as v
from kvarn.jit.cached import jit
from kvarn.jit.launch.atomics import take
from kvarn.jit.launch.define import Share, kernel
from kvarn.jit.launch.views import address, of_thread
from kvarn.ops.attention.layout import SEGMENT, TILE, TILES
from kvarn.ops.select.best import entry_of, make_room, mark_best, start
from kvarn.ops.select.choice import Range
from kvarn.ops.select.lists import clear, write_list
from kvarn.ops.select.masks import inside, low_bit
from kvarn.ops.select.scores import at_least, cost_of

from .arguments import Query, Scratch
from .layout import LINE, QUARTERS, scales_offset

_SPREAD = np.uint64(0xFFFF)  # times a word that marks first tokens of tiles: marks all 16 of each
_scales_offset = jit(scales_offset)


@jit
def _prepare(query, head, dimensions, h, mine):
    """What the scan needs of query head `head`, number h of those that share a pass.

    slack: a box is rounded outward in float32, a rotated key is rotated back in float32, and the
    bound itself is a sum in float32. Each of them may lose a few 2^-23 of 127 steps in each
    dimension; with this much added, the bound holds for the stored keys themselves.
    """
    total = np.float32(0.0)
    for d in range(dimensions):
        x = query.q[0, head, d] if d < query.q.shape[2] else np.float32(0.0)
        mine.queries[h, d] = x
        mine.lines[h, d] = 2 * LINE * d + (LINE if x > 0.0 else 0)
        total += abs(x)
    mine.slack[h] = total * np.float32((dimensions + 32) * 127.0 / (1 << 23))


@jit
def _bound(part, later, q, lines, slack, dimensions, out):
    """out float32[64] = bounds of the tiles at `part`; those of `later` are prefetched.

    part, later, q, out: addresses.
    """
    quarter, scales = dimensions // QUARTERS, part + _scales_offset(dimensions)
    for i in range(0, 4 * TILES, 64):
        widest = v.load_f32(scales, i)
        for g in range(1, QUARTERS):
            widest = v.vmax(widest, v.load_f32(scales, 4 * TILES * g + i))
        v.store(out, i, widest * v.set_f32(slack))
    for g in range(QUARTERS):
        s0 = s1 = s2 = s3 = v.set_f32(0.0)
        for d in range(g * quarter, (g + 1) * quarter):
            line, w = lines[d], v.bcast_f32(q, 4 * d)
            v.prefetch_l1(later, line)
            s0 = v.fma(v.load_i8_f32(part, line), w, s0)
            s1 = v.fma(v.load_i8_f32(part, line + 16), w, s1)
            s2 = v.fma(v.load_i8_f32(part, line + 32), w, s2)
            s3 = v.fma(v.load_i8_f32(part, line + 48), w, s3)
        own = scales + 4 * TILES * g
        v.store(out, 0, v.fma(s0, v.load_f32(own, 0), v.load_f32(out, 0)))
        v.store(out, 64, v.fma(s1, v.load_f32(own, 64), v.load_f32(out, 64)))
        v.store(out, 128, v.fma(s2, v.load_f32(own, 128), v.load_f32(out, 128)))
        v.store(out, 192, v.fma(s3, v.load_f32(own, 192), v.load_f32(out, 192)))


@jit
def _collect(bounds, segment, among, h, candidates):
    """Append the tiles of a segment with tokens of first .. last-1 whose bounds reach the limit."""
    entries, n, limit = candidates.entries, candidates.counts[h], candidates.limits[h]
    lo = among.first // TILE - segment * TILES
    hi = (among.last + TILE - 1) // TILE - segment * TILES
    for i in range(0, TILES, 16):
        some = at_least(bounds + 4 * i, limit)
        while some:
            tile = i + low_bit(some)
            some &= some - np.uint64(1)
            cost = cost_of(np.uint64(v.load_u32(bounds, 4 * tile)))
            entries[h, n] = entry_of(cost, segment * SEGMENT + TILE * tile)
            n += lo <= tile < hi
    candidates.counts[h] = n


@jit
def _mark_tiles(query, j, group, dimensions, among, k, seed, mine):
    """Mark the first token of each of the k best tiles of each query head of KV head j."""
    candidates, bounds = mine.candidates, address(mine.bounds)
    together = len(candidates.counts)
    offset = j * (_scales_offset(dimensions) + 4 * QUARTERS * TILES)
    end = (among.last - 1) // SEGMENT
    for g in range(0, group, together):
        for h in range(together):
            _prepare(query, j * group + g + h, dimensions, h, mine)
        start(together, candidates)
        for segment in range(among.first // SEGMENT, end + 1):
            part, later = query.items[segment] + offset, query.items[min(segment + 1, end)] + offset
            for h in range(together):
                q, lines = address(mine.queries[h]), mine.lines[h]
                _bound(part, later, q, lines, mine.slack[h], dimensions, bounds)
                _collect(bounds, segment, among, h, candidates)
                make_room(h, k, seed, candidates, candidates.entries.shape[1])
        mark_best(together, k, seed, candidates)


@kernel
def highest_tiles_kernel(
    share: Share,
    query: Query,
    scratch: Scratch,
    n_kv_heads: int,
    dimensions: int,
    among: Range,
    k: int,
    seed: int,
):
    """Lists as the Hamming scan's, of the k highest tiles. Reads 64 bytes of a tile's dimension
    and segment for each query head, of which those of the same sign share them."""
    mine = of_thread(scratch, share.part)
    marks, group = mine.candidates.marks, query.q.shape[1] // n_kv_heads
    j = take(share.ticket)
    while j < n_kv_heads:
        clear(marks, among.stop)
        _mark_tiles(query, j, group, dimensions, among, k, seed, mine)
        begin, end = among.first // 64, (among.last - 1) // 64
        for w in range(begin, end + 1):
            marks[w] *= _SPREAD
        for w in (begin, end):  # the tiles at both ends may have tokens outside the range
            marks[w] &= inside(w, among.first, among.last)
        query.counts[j] = write_list(marks, among.first, among.last, among.stop, query.lists[j])
        j = take(share.ticket)
