"""Kernels that choose the k nearest signatures of each query head, exactly.

cost = n_lots * (set bits of signature xor query) + lot(token),  n_lots = 128 / bits

sample   a limit for each query head that should have k tokens below it
scan     tokens below the limit of any head of a group become candidates: one list, one atomic
         a token; reads all signatures, which is the cost of it all
settle   the k best of each query head, digit by digit, counted: their bits are set. Where the
         sample promised too much, all tokens are candidates
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ...bits import lot, popcount, position_hash
from ..best import counted, decided, is_best
from ..lists import choose_tokens, start_list
from ..sample import SAMPLE, rank_in_sample, sampled

MOST = tl.constexpr(132)  # more than any cost


class Signatures(NamedTuple):
    """Signatures: words of stored keys (segments, J, 1024), uint64 of queries (J, G).

    n_lots is an argument: times a constant, the compiler would no longer see that popcount is one.
    """

    words: torch.Tensor
    queries: torch.Tensor
    seed: int
    n_lots: int


class Candidates(NamedTuple):
    """Limits of costs int32 (J, G); tokens below them int32 (J, room), and their numbers (J,)."""

    limits: torch.Tensor
    tokens: torch.Tensor
    counts: torch.Tensor
    room: int


@triton.jit
def _lots(segment, t, seed, LOTS: tl.constexpr):
    return lot(LOTS, position_hash(segment, seed), t).to(tl.int32)


@triton.jit
def _differ(w, query, BITS: tl.constexpr):
    """Bits in which signatures differ."""
    x = w ^ query.to(w.dtype)
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
def _costs(signatures, position, j, J, h, listed, BITS: tl.constexpr):
    """Costs of the tokens at positions for query head h."""
    words, queries, seed, n_lots = signatures
    w = _signature_at(words, position, j, J, listed)
    lots = _lots(position // 1024, position % 1024, seed, 128 // BITS)
    return n_lots * _differ(w, tl.load(queries + h), BITS) + lots


@triton.jit
def sample_kernel(signatures, among, limits, G: tl.constexpr, BITS: tl.constexpr):
    """limits int32 (J, G): costs that a sample says have k below them, very likely."""
    j, g = tl.program_id(0), tl.program_id(1)
    first, last, k = tl.load(among), tl.load(among + 1), tl.load(among + 3)
    n, limit = last - first, tl.full((), MOST, tl.int32)
    rank = rank_in_sample(k, n)
    if rank <= SAMPLE:
        position = sampled(first, n)
        costs = _costs(signatures, position, j, tl.num_programs(0), j * G + g, position >= 0, BITS)
        up_to = tl.cumsum(tl.histogram(costs, 256), 0)
        limit = tl.sum((up_to < rank).to(tl.int32), 0) + 1
    tl.store(limits + j * G + g, limit)


@triton.jit
def _over(w, queries, limits, h, n_lots, BITS: tl.constexpr):
    """By how much the costs of signatures are above the limit of head h, lots not counted."""
    return n_lots * _differ(w, tl.load(queries + h), BITS) - tl.load(limits + h)


@triton.jit
def scan_kernel(signatures, among, marks, candidates, G: tl.constexpr, BITS: tl.constexpr):
    """List the tokens of a segment whose cost is below the limit of a head.

    A thread has the signatures that lie in 16 bytes; it takes places for those that are near by
    one atomic.
    """
    words, queries, seed, n_lots = signatures
    segment, j, n_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, last, stop = tl.load(among), tl.load(among + 1), tl.load(among + 2)
    if segment * 1024 >= stop:
        return
    start_list(marks, among, j, segment)
    lanes: tl.constexpr = 128 // BITS
    runs: tl.constexpr = 8 // lanes  # so many times a thread loads 16 bytes
    r = tl.arange(0, 128)
    line = words + (segment * n_heads + j).to(tl.int64) * 1024
    near, n_near = (), tl.zeros((128,), tl.int32)
    for run in tl.static_range(runs):
        t = run * (128 * lanes) + r * lanes
        parts = _parts(tl.load(line + (t[:, None] + tl.arange(0, lanes)[None, :])))
        for i in tl.static_range(lanes):
            over = _over(parts[i], queries, candidates.limits, j * G, n_lots, BITS)
            for g in tl.static_range(1, G):
                of_head = _over(parts[i], queries, candidates.limits, j * G + g, n_lots, BITS)
                over = tl.minimum(over, of_head)
            lots = _lots(segment, t + i, seed, lanes)
            place = (segment * 1024 - first + t + i).to(tl.uint32)
            is_near = (over + lots < 0) & (place < (last - first).to(tl.uint32))
            near = near + (is_near,)
            n_near += is_near.to(tl.int32)
    place = candidates.counts + j + tl.zeros((128,), tl.int32)
    to = candidates.tokens + j.to(tl.int64) * candidates.room
    to += tl.atomic_add(place, n_near, n_near > 0, sem="relaxed")
    for i in tl.static_range(8):
        position = segment * 1024 + i // lanes * (128 * lanes) + r * lanes + i % lanes
        tl.store(to, position, near[i])
        to += near[i].to(tl.int32)


@triton.jit
def _parts(x):
    """The columns of x (n, 2 or 4), a tensor (n,) each."""
    if x.shape[1] == 2:
        parts = tl.split(x)
    else:
        even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
        a, c = tl.split(even)
        b, d = tl.split(odd)
        parts = (a, b, c, d)
    return parts


@triton.jit
def settle_kernel(
    signatures, among, marks, candidates, J: tl.constexpr, G: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the bits of the k best of one query head, among the candidates of its group."""
    h, seed = tl.program_id(0), signatures.seed
    j = h // G
    first, last, need = tl.load(among), tl.load(among + 1), tl.load(among + 3)
    n, line = tl.load(candidates.counts + j), candidates.tokens + j.to(tl.int64) * candidates.room
    below, least = tl.zeros((BLOCK,), tl.int32), tl.load(candidates.limits + h)
    for begin in range(0, n, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        position = tl.load(line + i, i < n, 0)
        cost = _costs(signatures, position, j, J, h, i < n, BITS)
        below += ((cost < least) & (i < n)).to(tl.int32)
    # Only below its limit does the list have all tokens of this head.
    lacks = tl.sum(below, 0) < need
    n = tl.where(lacks, last - first, n)
    worst, limit = tl.zeros((), tl.uint32), tl.zeros((), tl.uint32)
    ties = need + 1
    for digit in range(3, 9):  # of a cost the last byte; the last time they are chosen
        if (ties > need) | (digit == 8):
            digits = tl.zeros((256,), tl.int32)
            for begin in range(0, n, BLOCK):
                i = begin + tl.arange(0, BLOCK)
                position = tl.where(lacks, first + i, tl.load(line + i, i < n, 0))
                cost = _costs(signatures, position, j, J, h, i < n, BITS).to(tl.uint32)
                if digit < 8:
                    digits_of, same = counted(cost, position, seed, i < n, digit, worst, limit)
                    digits += tl.histogram(digits_of, 256, same)
                else:
                    fits = is_best(cost, position, seed, worst, limit) & (i < n)
                    choose_tokens(marks, j, position, fits)
            if digit < 8:
                need, ties, worst, limit = decided(digits, need, digit, worst, limit)
