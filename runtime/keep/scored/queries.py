"""The last queries of a context, by which keep methods score the tokens in slots.

A block holds those of 512 tokens, from a multiple of 512 on, of all layers that score:

    queries    float16 [layer][token][query head][head_dim], multiplied by the attention's scale
    log sums   float32 [layer][token][query head]: log-sum-exp of the query's scores, or NaN
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....ops.arrays import F32

BLOCK = 512


def bytes_of(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


class _Block(NamedTuple):
    queries: NDArray[np.float16]
    log_sums: F32


class Piece(NamedTuple):
    """Queries of tokens from a position on, float32 (T, H, E), and their log sums (T, H)."""

    position: int
    queries: F32
    log_sums: F32


class Queries:
    """Queries of all tokens that were read from `first` on; memory grows with them.

    layers: numbers of the layers that score.
    """

    def __init__(self, layers: Sequence[int], n_heads: int, head_dim: int) -> None:
        self._place = {layer: place for place, layer in enumerate(layers)}
        self._shape = len(layers), BLOCK, n_heads
        self._head_dim = head_dim
        self._blocks: dict[int, _Block] = {}
        self.first = 0

    @property
    def n_bytes(self) -> int:
        return sum(part.nbytes for block in self._blocks.values() for part in block)

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes of `n_tokens` queries, in whole blocks."""
        layers, block, heads = self._shape
        return -(-n_tokens // block) * layers * block * heads * (2 * self._head_dim + 4)

    def put(self, layer: int, position: int, queries: F32, log_sums: F32 | None) -> None:
        """Keep the scaled queries (T, H, E) of tokens from `position` on, in place of those there.

        log_sums (T, H); None: not known.
        """
        if not self._blocks:
            self.first = position
        self.first = min(self.first, position)
        place = self._place[layer]
        for number, rows, tokens in _spans(position, position + len(queries)):
            if number not in self._blocks:
                self._blocks[number] = self._empty()
            block = self._blocks[number]
            block.queries[place, rows] = queries[tokens]
            block.log_sums[place, rows] = np.nan if log_sums is None else log_sums[tokens]

    def pieces(self, layer: int, first: int, stop: int) -> Iterator[Piece]:
        """The queries of tokens first to stop - 1, a block at a time."""
        place = self._place[layer]
        for number, rows, tokens in _spans(first, stop):
            block = self._blocks[number]
            queries = block.queries[place, rows].astype(np.float32)
            yield Piece(first + tokens.start, queries, block.log_sums[place, rows].copy())

    def has(self, first: int, stop: int) -> bool:
        """Whether `pieces` has queries of tokens first to stop - 1."""
        return first >= stop or all(span[0] in self._blocks for span in _spans(first, stop))

    def free_before(self, first: int) -> None:
        """Free blocks that have no token from `first` on."""
        low = first // BLOCK
        for number in [n for n in self._blocks if n < low]:
            del self._blocks[number]
            self.first = max(self.first, low * BLOCK)

    def clear(self) -> None:
        """Free all."""
        self._blocks.clear()
        self.first = 0

    def parts(self) -> list[memoryview]:
        """The bytes of all blocks, in their order."""
        blocks = [block for _, block in sorted(self._blocks.items())]
        return [bytes_of(part) for block in blocks for part in block]

    def restore(self, first: int, n_blocks: int) -> list[memoryview]:
        """Memory for the bytes that `parts` gave, of `n_blocks` blocks."""
        self.clear()
        self.first = first
        for number in range(n_blocks):
            self._blocks[first // BLOCK + number] = self._empty()
        return self.parts()

    def _empty(self) -> _Block:
        shape = self._shape
        return _Block(
            np.zeros((*shape, self._head_dim), np.float16), np.full(shape, np.nan, np.float32)
        )


def _spans(first: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
    """Each block that holds some of the tokens first … stop - 1: its number, the tokens' rows in
    it, and their numbers among these tokens."""
    for number in range(first // BLOCK, -(-stop // BLOCK) if first < stop else 0):
        begin = number * BLOCK
        low, high = max(first, begin), min(stop, begin + BLOCK)
        yield number, slice(low - begin, high - begin), slice(low - first, high - first)
