"""The k best of many candidates, exactly, as `ops.select.best` chooses them.

A candidate is an entry, int64: its cost (uint32, less is better) above its position. Of equal costs
the smallest hash of the position wins.
"""

import triton
import triton.language as tl

from ..bits import position_hash
from .lists import kth_digit


@triton.jit
def entry_of(cost, position):
    """A candidate as one number."""
    return (cost.to(tl.int64) << 32) | position.to(tl.int64)


@triton.jit
def cost_and_position(entry):
    """What `entry_of` was made of."""
    return ((entry >> 32) & 0xFFFFFFFF).to(tl.uint32), (entry & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def counted(cost, position, seed, listed, n, worst, limit):
    """Digit number n of candidates, and whether it counts: they share all digits before.

    Digits 0 to 3 are bytes of the cost from the leading one on, of which `worst` has those that are
    known; 4 to 7 those of the hash, among costs of `worst`, with `limit`.
    """
    key = tl.where(n < 4, cost, position_hash(position, seed))
    known = tl.where(n < 4, worst, limit)
    shift = 24 - 8 * (n % 4)
    same = ((key ^ known).to(tl.uint64) >> (shift + 8)) == 0
    same &= (n < 4) | (cost == worst)
    return ((key >> shift) & 255).to(tl.int32), listed & same


@triton.jit
def decided(digits, need, n, worst, limit):
    """(need, ties, worst, limit) once digit n is counted in digits (256,).

    ties: how many share all digits so far. Where these are all needed, no other digit matters.
    """
    digit, less = kth_digit(digits, need, 256)
    ties = tl.sum(tl.where(tl.arange(0, 256) == digit, digits, 0), 0)
    need -= less
    shift = 24 - 8 * (n % 4)
    placed = digit.to(tl.uint32) << shift
    ones = (tl.full((), 1, tl.uint32) << shift) - 1
    whole = ties <= need
    worst = tl.where(n < 4, worst | placed | tl.where(whole, ones, 0), worst)
    limit = tl.where(n < 4, limit, limit | placed)
    limit = tl.where(whole, tl.where(n < 4, 0, limit) | tl.where(n < 4, 0xFFFFFFFF, ones), limit)
    return need, ties, worst, limit


@triton.jit
def is_best(cost, position, seed, worst, limit):
    """Whether a candidate is one of the k best."""
    return (cost < worst) | ((cost == worst) & (position_hash(position, seed) <= limit))
