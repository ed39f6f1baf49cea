"""A limit of costs from a sample: few more tokens than are wanted reach it.

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
    """The rank in the sample from which on its costs are a limit that k of n tokens reach.

    That they do not is less likely than 1 in 10^6: five standard deviations of how many of those k
    are in the sample, and 4, for such numbers have a longer tail than that where they are small.
    """
    wanted = k.to(tl.float32) * SAMPLE / n.to(tl.float32)
    return tl.minimum(wanted + 5.0 * tl.sqrt(wanted) + 4.0, SAMPLE).to(tl.int32)
