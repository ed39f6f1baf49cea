"""Memory mappings without a file, whole or in pieces."""

from __future__ import annotations

import mmap

import numpy as np

from ....jit.arena import HUGE, ask_for_huge_pages, private_mapping
from ...memory import human_bytes
from ..base import StoreError


def anonymous(n_bytes: int, contents: str) -> tuple[mmap.mmap, int]:
    """A mapping of `n_bytes` zeros and its address; `StoreError` if the system refuses. It asks for
    huge pages, with which attention reads a tenth faster."""
    try:
        mapping = private_mapping(n_bytes)
    except OSError as error:
        raise StoreError(
            f"no memory for {contents} ({human_bytes(n_bytes)}): {error.strerror}"
        ) from error
    ask_for_huge_pages(mapping, 0, n_bytes)
    return mapping, np.frombuffer(mapping, np.uint8).ctypes.data


_MOST = 64 << 20  # of a mapping of several pieces


class Pieces:
    """Memory in pieces of `n_bytes`, which share mappings that consist of huge pages.

    Index data of a segment is less than a huge page, and K and V of one seldom end with one: in a
    mapping of their own, a part of them would lie in pages of 4 KB, for which the tables of
    addresses are searched at nearly each access (see docs/internals/performance.md). A mapping has
    as many pieces as its owner has then, so that a small context takes no more than it needs, and
    is freed with the last of them.
    """

    def __init__(self, n_bytes: int, contents: str) -> None:
        self._n_bytes, self._contents = n_bytes, contents
        self._left: list[tuple[memoryview, int]] = []

    def take(self, n_taken: int) -> tuple[memoryview, int]:
        """A piece of zeros and its address, for an owner of `n_taken`; `StoreError` if the system
        refuses."""
        if not self._left:
            self._left = self._mapped(min(n_taken, _MOST // self._n_bytes))
        return self._left.pop()

    def _mapped(self, n: int) -> list[tuple[memoryview, int]]:
        """The pieces of a new mapping, the last one first."""
        size = self._n_bytes
        if n <= 1 or n * size < HUGE:
            mapping, address = anonymous(size, self._contents)
            return [(memoryview(mapping), address)]
        n_bytes = -(-n * size // HUGE) * HUGE
        mapping, address = anonymous(n_bytes + HUGE, self._contents)
        first = -address % HUGE  # what is never touched takes no memory
        view = memoryview(mapping)
        return [
            (view[at : at + size], address + at)
            for at in range(first + (n - 1) * size, first - 1, -size)
        ]
