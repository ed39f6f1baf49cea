"""From the tokens that the queries of a group chose to the list that the group attends to."""

import numpy as np

from ...jit.cached import jit
from ...jit.simd import store
from .masks import bit_count, filled_words, inside, kind_of, low_bit

_LOW = np.uint64(0xFFFFFFFF)


@jit
def clear(marks, stop):
    """Clear the bits of the positions below `stop`; marks uint64[], a bit for each position."""
    for w in range((stop + 63) // 64):
        marks[w] = 0


@jit
def mark(entries, n, marks):
    """Set the bit of the position (the low half) of each entry uint64[]."""
    for i in range(n):
        position = entries[i] & _LOW
        marks[np.int64(position >> np.uint64(6))] |= np.uint64(1) << (position & np.uint64(63))


@jit
def mark_taken(taken, stop, marks):
    """Set the bits of the positions below `stop` that are set in taken uint64[], or no words."""
    if len(taken) > 0:
        for w in range((stop + 63) // 64):
            marks[w] |= taken[w]


@jit
def write_list(marks, first, last, stop, index):
    """index[:n] = 0 .. first-1, the marked of first .. last-1, last .. stop-1; returns n.

    Of each 64 words of marks only those that are not 0 are read. For each of them four entries are
    written at a time, however many bits are left; what is too much is overwritten.
    """
    n, room, place, to = 0, len(index), np.int64(marks.ctypes.data), np.int64(index.ctypes.data)
    for position in range(first):
        index[n] = position
        n += 1
    begin, end = first >> 6, (last + 63) >> 6
    for base in range(begin & -64, end, 64):
        filled = filled_words(kind_of(64, 4), place + 8 * base) & inside(base >> 6, begin, end)
        while filled:
            w = base + low_bit(filled)
            filled &= filled - np.uint64(1)
            word = marks[w]
            then = n + bit_count(word)
            if then + 4 <= room:
                while True:
                    for i in range(4):  # at addresses: an index might be negative, Numba thinks
                        store(to, 4 * (n + i), np.uint32(64 * w + low_bit(word)))
                        word &= word - np.uint64(1)
                    n += 4
                    if n >= then:
                        break
            while n < then:
                index[n] = 64 * w + low_bit(word)
                word &= word - np.uint64(1)
                n += 1
            n = then
    for position in range(last, stop):
        index[n] = position
        n += 1
    return n
