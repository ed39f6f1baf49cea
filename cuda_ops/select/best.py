"""The k best of many candidates, exactly, as `ops.select.best` chooses them.

A candidate is an entry, int64: its cost (uint32, less is better) above its position. Of equal costs
the smallest hash of the position wins.
"""

import triton
import triton.language as tl

from ..bits import position_hash


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
    up_to = tl.cumsum(digits, 0)
    # (smaller ones, ties, digit) of each digit in one number, least where `need` is reached first:
    # one reduction instead of three.
    told = ((up_to - digits).to(tl.int64) << 36) | (digits.to(tl.int64) << 8)
    told = tl.min(tl.where(up_to >= need, told | tl.arange(0, 256), (1 << 63) - 1), 0)
    digit, ties = (told & 255).to(tl.int32), ((told >> 8) & 0xFFFFFFF).to(tl.int32)
    need -= (told >> 36).to(tl.int32)
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
