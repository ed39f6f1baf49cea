"""Arrays of strings: stepping over them and decoding them, some hundred thousand at a time.

Each string is its length (u64, in version 1 u32) and its bytes, so where the second starts is
known only after the first: a vocabulary cannot be skipped, it must be walked.
"""

from __future__ import annotations

import struct
from array import array

import numpy as np
from numpy.typing import NDArray

from .layout import U32, U64

# Decoded together; bounds the temporary copies and keeps them in the cache.
_CHUNK = 16384


class BrokenString(Exception):
    """String number `index` of an array claims `length` bytes; the file ends before."""

    def __init__(self, index: int, length: int) -> None:
        super().__init__(index, length)
        self.index = index
        self.length = length


def walk_strings(
    view: memoryview, position: int, count: int, count_bytes: int
) -> tuple[NDArray[np.int64], int]:
    """Where each of `count` strings starts (at its length), and where the last one ends.

    Some 100 ns per string. Raises BrokenString when one runs past the end of `view`.
    """
    length_at = (U64 if count_bytes == U64.size else U32).unpack_from
    starts = array("q")
    append = starts.append
    try:
        for _ in range(count):
            append(position)
            position += length_at(view, position)[0] + count_bytes
    except (struct.error, OverflowError):
        position = len(view) + 1
    if position > len(view):
        raise _broken(view, starts, count_bytes)
    return np.frombuffer(starts, np.int64), position


def _broken(view: memoryview, starts: array[int], count_bytes: int) -> BrokenString:
    """The first string of `starts` that does not end inside `view`."""
    form = U64 if count_bytes == U64.size else U32
    last = len(starts) - 1
    while last > 0 and starts[last] + count_bytes > len(view):
        last -= 1
    length: int = 0
    if starts[last] + count_bytes <= len(view):
        length = form.unpack_from(view, starts[last])[0]
    return BrokenString(last, length)


def decode_strings(
    view: memoryview, starts: NDArray[np.int64], end: int, count_bytes: int
) -> list[str]:
    """The strings that start at `starts`, the last of which ends at `end`.

    UTF-8; bytes that are not come back exactly from `s.encode("utf-8", "surrogateescape")`.
    Some 100 ns per string: the lengths are overwritten with zero bytes and the whole text is
    decoded and split in one go, which is exact when the strings hold no zero byte themselves.
    """
    texts: list[str] = []
    for first in range(0, len(starts), _CHUNK):
        chunk = starts[first : first + _CHUNK]
        begin = int(chunk[0])
        stop = int(starts[first + _CHUNK]) if first + _CHUNK < len(starts) else end
        region = bytearray(view[begin:stop])
        at = chunk - begin
        writable = np.frombuffer(region, np.uint8)
        for k in range(count_bytes):
            writable[at + k] = 0
        if region.count(0) == len(chunk) * count_bytes:
            text = region.decode("utf-8", "surrogateescape")
            texts += text.split("\0" * count_bytes)[1:]
        else:
            ends = [*at[1:].tolist(), stop - begin]
            texts += [
                region[start + count_bytes : stop].decode("utf-8", "surrogateescape")
                for start, stop in zip(at.tolist(), ends)
            ]
    return texts
