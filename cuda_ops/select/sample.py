"""A limit of costs from a sample, which few more tokens than are wanted reach.

The sample has one token at random of each of SAMPLE parts of equal length: neighbours are often
alike, and runs of them would tell less than their number says.
"""

import triton
import triton.language as tl

from ..bits import position_hash

SAMPLE = tl.constexpr(2048)
ENOUGH = tl.constexpr(4096)
"""Tokens from which on a sample is worth it."""


@triton.jit
def sampled(first, n):
    """Positions (SAMPLE,) of n >= SAMPLE tokens from `first` on, ascending."""
    i = tl.arange(0, SAMPLE)
    part, rest = n // SAMPLE, n % SAMPLE
    before, after = i * rest // SAMPLE, (i + 1) * rest // SAMPLE
    length = (part + after - before).to(tl.uint32)
    return first + i * part + before + (position_hash(i, 0) % length).to(tl.int32)


@triton.jit
def rank_in_sample(k, n):
    """The rank in the sample whose cost is a limit that k of n tokens reach; more than SAMPLE where
    a sample does not help: n is less than ENOUGH, or k nearly n.

    That fewer reach it is less likely than 1 in 10^6. It takes `rank` of the k best in the sample.
    Where costs do not depend on positions, their number there is a sum of independent trials with
    the mean `wanted`, whose tail is at most that of a Poisson distribution (Hoeffding 1956).
    """
    wanted = k.to(tl.float32) * SAMPLE / tl.maximum(n, ENOUGH).to(tl.float32)
    rank = (wanted + 5.0 * tl.sqrt(wanted) + 5.0).to(tl.int32)
    return tl.where(n < ENOUGH, SAMPLE + 1, rank)
