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
def _kth(digits, need):
    """(digit of the need-th least, how many have it, how many are less) from the counts (256,)."""
    up_to = tl.cumsum(digits, 0)
    # All three in one number, least where `need` is reached first: one reduction instead of three.
    told = ((up_to - digits).to(tl.int64) << 36) | (digits.to(tl.int64) << 8)
    told = tl.min(tl.where(up_to >= need, told | tl.arange(0, 256), (1 << 63) - 1), 0)
    ties = (told >> 8) & 0xFFFFFFF
    return (told & 255).to(tl.int32), ties.to(tl.int32), (told >> 36).to(tl.int32)


@triton.jit
def decided(digits, need, n, worst, limit):
    """(need, ties, worst, limit) once digit n is counted in digits (256,).

    ties: how many share all digits so far. Where these are all needed, no other digit matters.
    """
    digit, ties, less = _kth(digits, need)
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


@triton.jit
def _value_of(entries):
    """The float32 that the cost of an entry was made of."""
    cost, _ = cost_and_position(entries)
    return tl.where(cost >> 31 == 1, cost, cost ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def limits_of(line, n, need, seed, rest, room, BLOCK: tl.constexpr):
    """(worst, limit) by which `is_best` keeps the `need` best of the n entries at `line`.

    rest: memory for `room` other entries.
    """
    few, n_few, need, bound = _near_kth(line, n, need, rest, room, BLOCK)
    worst, limit = tl.zeros((), tl.uint32), tl.zeros((), tl.uint32)
    ties = need + 1
    for digit in range(8):
        if ties > need:
            digits = tl.zeros((256,), tl.int32)
            for begin in range(0, n_few, BLOCK):
                i = begin + tl.arange(0, BLOCK)
                cost, position = cost_and_position(tl.load(few + i, i < n_few, 0))
                digits_of, same = counted(cost, position, seed, i < n_few, digit, worst, limit)
                digits += tl.histogram(digits_of, 256, same)
            need, ties, worst, limit = decided(digits, need, digit, worst, limit)
    return tl.minimum(worst, bound), limit


@triton.jit
def _near_kth(line, n, need, rest, room, BLOCK: tl.constexpr):
    """(entries, their number, need, bound): few among which the need-th best of the n entries at
    `line` is the one that is returned as need; all, if they are few, or if these would be more than
    `room`. What is better than these has costs up to bound, as they have; what is worse has not.

    They go to `rest`: those of one of 256 intervals of equal length from the largest value down to
    the mean. This takes three passes, of which one counts; digits would take four that count.
    """
    few, n_few, bound = line, n, tl.full((), 0xFFFFFFFF, tl.uint32)
    if n > BLOCK:
        i = tl.arange(0, BLOCK)
        top, total = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for begin in range(0, n, BLOCK):
            listed = begin + i < n
            value = _value_of(tl.load(line + tl.minimum(begin + i, n - 1)))
            top = tl.maximum(top, tl.where(listed, value, float("-inf")))
            total += tl.where(listed, value, 0.0)
        most = tl.max(top, 0)
        scale = 256.0 / (most - tl.sum(total, 0) / n)
        if (scale > 0.0) & (scale < float("inf")):  # else all are equal, or some not finite
            digits = tl.zeros((256,), tl.int32)
            for begin in range(0, n, BLOCK):
                entries = tl.load(line + tl.minimum(begin + i, n - 1))
                digits += tl.histogram(_interval(entries, most, scale), 256, begin + i < n)
            interval, ties, less = _kth(digits, need)
            if ties <= room:
                few, n_few, need = rest, 0, need - less
                worst = tl.zeros((BLOCK,), tl.uint32)
                for begin in range(0, n, BLOCK):
                    entries = tl.load(line + tl.minimum(begin + i, n - 1))
                    near = (_interval(entries, most, scale) == interval) & (begin + i < n)
                    at = n_few + tl.cumsum(near.to(tl.int32), 0) - 1
                    tl.store(rest + at, entries, near)
                    n_few += tl.sum(near.to(tl.int32), 0)
                    cost, _ = cost_and_position(entries)
                    worst = tl.maximum(worst, tl.where(near, cost, 0))
                bound = tl.max(worst, 0)
                tl.debug_barrier()
    return few, n_few, need, bound


@triton.jit
def _interval(entries, most, scale):
    """The number of the interval of each entry's value, 0 to 255: the largest values are in 0."""
    away = (most - _value_of(entries)) * scale
    return tl.minimum(tl.maximum(away, 0.0), 255.0).to(tl.int32)
