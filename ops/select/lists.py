"""From what the queries of a group chose to the list of tokens that the group attends."""

import numpy as np

from ..cache import jit
from .masks import bit_count, low_bit

_LOW = np.uint64(0xFFFFFFFF)


@jit
def clear(marks, stop):
    """Forget the positions below `stop`; marks uint64[], a bit for each position."""
    for w in range((stop + 63) // 64):
        marks[w] = 0


@jit
def mark(entries, n, marks):
    """Set the bit of the position (the low half) of each entry uint64[]."""
    for i in range(n):
        position = entries[i] & _LOW
        marks[np.int64(position >> np.uint64(6))] |= np.uint64(1) << (position & np.uint64(63))


@jit
def write_list(marks, first, last, stop, index):
    """index[:n] = 0 .. first-1, the marked of first .. last-1, last .. stop-1; gives n.

    Four places are written for each word of marks, without asking how many bits it has.
    """
    n, room = 0, len(index)
    for position in range(first):
        index[n] = position
        n += 1
    for w in range(first >> 6, (last + 63) >> 6):
        word = marks[w]
        end = n + bit_count(word)
        if end + 4 <= room:
            while True:
                for i in range(4):
                    index[n + i] = 64 * w + low_bit(word)
                    word &= word - np.uint64(1)
                n += 4
                if n >= end:
                    break
        while n < end:
            index[n] = 64 * w + low_bit(word)
            word &= word - np.uint64(1)
            n += 1
        n = end
    for position in range(last, stop):
        index[n] = position
        n += 1
    return n
