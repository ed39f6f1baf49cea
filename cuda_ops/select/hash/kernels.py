"""Kernels that choose the k nearest signatures of each query head, exactly.

cost = n_lots * (set bits of signature xor query) + lot(token),  n_lots = 128 / bits

sample   a limit for each query head that should have k tokens below it
scan     tokens below the limit of any head of a group become candidates: one list, one atomic
         a token; reads all signatures, which is the cost of it all
settle   the k best of each query head, digit by digit, counted: their bits are set. Where the
         sample promised too much, all tokens are candidates
"""

import triton
import triton.language as tl

from ...bits import lot, popcount, position_hash
from ..lists import choose_tokens, kth_digit, start_list

MOST = 132  # more than any cost
SAMPLE = 4096
ENOUGH = 8192  # tokens from which on a sample is worth it


@triton.jit
def _lots(segment, t, seed, LOTS: tl.constexpr):
    return lot(LOTS, position_hash(segment, seed), t).to(tl.int32)


@triton.jit
def _differ(w, query, BITS: tl.constexpr):
    """Bits in which signatures differ."""
    x = w ^ query
    if BITS == 32:
        n = popcount(x.to(tl.uint32, bitcast=True))
    else:
        y = x.to(tl.uint64, bitcast=True)
        n = popcount((y & 0xFFFFFFFF).to(tl.uint32)) + popcount((y >> 32).to(tl.uint32))
    return n


@triton.jit
def _signature_at(words, position, j, J, listed):
    at = ((position // 1024).to(tl.int64) * J + j) * 1024 + position % 1024
    return tl.load(words + at, listed, 0)


@triton.jit
def sample_kernel(
    words, queries, among, seed, n_lots, limits, G: tl.constexpr, BITS: tl.constexpr,
    SAMPLE: tl.constexpr, ENOUGH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """limits int32 (J, G): costs that a sample in 64 runs says have k below them, very likely."""
    j, n_heads = tl.program_id(0), tl.num_programs(0)
    first, last, k = tl.load(among), tl.load(among + 1), tl.load(among + 3)
    n, run = last - first, SAMPLE // 64
    enough = n >= ENOUGH
    i = tl.arange(0, SAMPLE)
    position = first + i // run * ((n - run) // 63) + i % run
    position = tl.where(enough, position, first)
    w = _signature_at(words, position, j, n_heads, position >= 0)
    lots = _lots(position // 1024, position % 1024, seed, 128 // BITS)
    wanted = k.to(tl.float32) * SAMPLE / n.to(tl.float32)
    wanted += 4.0 * tl.sqrt(wanted) + 1.0
    for g in tl.static_range(G):
        costs = n_lots * _differ(w, tl.load(queries + j * G + g), BITS) + lots
        up_to = tl.cumsum(tl.histogram(costs, 256), 0)
        limit = tl.sum((up_to.to(tl.float32) < wanted).to(tl.int32), 0) + 1
        tl.store(limits + j * G + g, tl.where(enough, tl.minimum(limit, MOST), MOST))


@triton.jit
def scan_kernel(
    words, queries, among, seed, n_lots, limits, bits, totals, candidates, n_candidates, room,
    G: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """candidates int32 (J, room): tokens of a segment whose cost is below the limit of a head."""
    segment, j, n_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, last, stop = tl.load(among), tl.load(among + 1), tl.load(among + 2)
    if segment * 1024 >= stop:
        return
    t = tl.arange(0, 1024)
    position = segment * 1024 + t
    w = tl.load(words + (segment * n_heads + j).to(tl.int64) * 1024 + t)
    lots = _lots(segment, t, seed, 128 // BITS)
    near = tl.zeros((1024,), tl.int1)
    for g in tl.static_range(G):
        h = j * G + g
        near |= n_lots * _differ(w, tl.load(queries + h), BITS) + lots < tl.load(limits + h)
    competes = (position >= first) & (position < last)
    near &= competes
    slot = tl.atomic_add(n_candidates + j + tl.zeros((1024,), tl.int32), 1, near, sem="relaxed")
    tl.store(candidates + j.to(tl.int64) * room + slot, position, near)
    at = j * tl.num_programs(0) + segment
    if (segment * 1024 >= first) & (segment * 1024 + 1024 <= last):  # nearly all segments
        tl.store(bits + at * 32 + tl.arange(0, 32), tl.zeros((32,), tl.int32))
        tl.store(totals + at, 0)
    else:
        start_list(bits, totals, at, (position < stop) & (competes == 0))


@triton.jit
def settle_kernel(
    words, queries, among, seed, n_lots, limits, bits, totals, candidates, n_candidates,
    n_segments, room, J: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the bits of the k best of one query head, among the candidates of its group."""
    h = tl.program_id(0)
    j = h // G
    first, last, need = tl.load(among), tl.load(among + 1), tl.load(among + 3)
    n, query, line = tl.load(n_candidates + j), tl.load(queries + h), j.to(tl.int64) * room
    costs = tl.zeros((256,), tl.int32)
    for begin in range(0, n, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        position = tl.load(candidates + line + i, i < n, 0)
        w = _signature_at(words, position, j, J, i < n)
        lots = _lots(position // 1024, position % 1024, seed, 128 // BITS)
        costs += tl.histogram(n_lots * _differ(w, query, BITS) + lots, 256, i < n)
    worst, less = kth_digit(costs, need, 256)
    # Only below its limit does the list have all tokens of this head.
    lacks = worst >= tl.load(limits + h)
    if lacks:
        n = last - first
        costs = tl.zeros((256,), tl.int32)
        for begin in range(0, n, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            position = first + i
            w = _signature_at(words, position, j, J, i < n)
            lots = _lots(position // 1024, position % 1024, seed, 128 // BITS)
            costs += tl.histogram(n_lots * _differ(w, query, BITS) + lots, 256, i < n)
        worst, less = kth_digit(costs, need, 256)
    need -= less
    # Of those at that cost the need-th smallest hash, eight bits at a time.
    limit = tl.zeros((), tl.uint32)
    for shift in tl.static_range(24, -1, -8):
        digits = tl.zeros((256,), tl.int32)
        for begin in range(0, n, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            position = tl.where(lacks, first + i, tl.load(candidates + line + i, i < n, 0))
            w = _signature_at(words, position, j, J, i < n)
            lots = _lots(position // 1024, position % 1024, seed, 128 // BITS)
            same = (n_lots * _differ(w, query, BITS) + lots == worst) & (i < n)
            hashed = position_hash(position, seed)
            if shift < 24:
                same &= (hashed >> (shift + 8)) == (limit >> (shift + 8))
            digits += tl.histogram(((hashed >> shift) & 255).to(tl.int32), 256, same)
        digit, less = kth_digit(digits, need, 256)
        need -= less
        limit |= digit.to(tl.uint32) << shift
    for begin in range(0, n, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        position = tl.where(lacks, first + i, tl.load(candidates + line + i, i < n, 0))
        w = _signature_at(words, position, j, J, i < n)
        lots = _lots(position // 1024, position % 1024, seed, 128 // BITS)
        cost = n_lots * _differ(w, query, BITS) + lots
        fits = (cost < worst) | ((cost == worst) & (position_hash(position, seed) <= limit))
        choose_tokens(bits, totals, j, n_segments, position, fits & (i < n))
