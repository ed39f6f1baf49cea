"""An index of n-grams: the last place of each, in one hash table per size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ops.arrays import I32

# Knuth's multiplicative hash with 2^64 / golden ratio: its high bits are the entry's number.
_FACTOR = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_FEW = 32  # tokens up to which a loop is faster than NumPy's set-up
_BLOCK = 1 << 16  # tokens hashed at a time: 1.5 MB of temporary arrays


class NgramIndex:
    """The last place of every n-gram in a list of tokens that only grows.

    Each size has an int32 table of 2^b entries, 2 to 4 per token. An entry holds the place after an
    n-gram, or 0. N-grams with the same entry replace each other, so a look-up can miss an old one.
    It compares the tokens, so it never returns a wrong one.

    Cost: O(largest size) per token, amortised over doublings of the tables; 8 to 16 bytes per token
    and size (25 MB for 2^20 tokens and three sizes).
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sorted(sizes)
        self._longest = 2 * self._sizes[-1]
        self._resize(1024)

    @property
    def n_bytes(self) -> int:
        """Bytes of the tables."""
        return sum(table.nbytes for table in self._tables)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """(place, length): tokens[place - length : place] equal the last `length` tokens.

        The place is the latest of the longest known n-gram. `length` is at most twice the largest
        size. (0, 0) where there is no such place. Each call's tokens must begin with those of the
        call before.
        """
        stop = len(tokens)
        self._catch_up(tokens)
        entries = self._entries(tokens, stop)
        self._n_known = stop + 1
        match = 0, 0
        for size, table, entry in reversed(list(zip(self._sizes, self._tables, entries))):
            place = int(table[entry])
            table[entry] = stop
            if match[1] or not 0 < place < stop:
                continue
            if tokens[place - size : place] == tokens[stop - size : stop]:
                match = place, self._extended(tokens, place, size)
        return match

    def _extended(self, tokens: Sequence[int], place: int, length: int) -> int:
        """The length of a match of at least `length` tokens, extended to the left."""
        stop, longest = len(tokens), min(place, self._longest)
        while length < longest and tokens[place - length - 1] == tokens[stop - length - 1]:
            length += 1
        return length

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Add the n-grams that end before the last token."""
        if len(tokens) > 1 << (self._bits - 1):
            self._resize(len(tokens))
        first = self._n_known
        if len(tokens) - first <= _FEW:
            for stop in range(first, len(tokens)):
                for table, entry in zip(self._tables, self._entries(tokens, stop)):
                    table[entry] = stop
            return
        for start in range(first, len(tokens), _BLOCK):
            stop = min(start + _BLOCK, len(tokens))
            for size, table in zip(self._sizes, self._tables):
                self._fill(table, tokens, size, start, stop)

    def _entries(self, tokens: Sequence[int], stop: int) -> list[int]:
        """The entries of the n-grams that end before `stop`, for each size that fits."""
        entries: list[int] = []
        value, n, shift = 0, 0, 64 - self._bits
        for size in self._sizes:
            if size > stop:
                break
            for i in range(stop - n - 1, stop - size - 1, -1):
                value = (value * _FACTOR + tokens[i]) & _WORD
            n = size
            entries.append((value * _FACTOR & _WORD) >> shift)
        return entries

    def _fill(self, table: I32, tokens: Sequence[int], size: int, start: int, stop: int) -> None:
        """Enter the n-grams of a size that end before `start` … `stop` - 1; of equals the last."""
        base = max(0, start - size)
        ids = np.asarray(tokens[base : stop - 1], np.uint64)
        if len(ids) < size:
            return
        factor = np.uint64(_FACTOR)
        values = ids[size - 1 :].copy()
        for n in range(1, size):
            values *= factor
            values += ids[size - 1 - n : len(ids) - n]
        entries = (values * factor) >> np.uint64(64 - self._bits)
        table[entries] = np.arange(base + size, stop, dtype=np.int32)

    def _resize(self, n_tokens: int) -> None:
        """Make empty tables with two or more entries per token; n-grams must then be added anew."""
        self._bits = (2 * n_tokens - 1).bit_length()
        self._tables = [np.zeros(1 << self._bits, np.int32) for _ in self._sizes]
        self._n_known = 0  # n-grams that end before this place are in
