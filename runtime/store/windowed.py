"""K and V of layers with a sliding window: of the tokens, those that a later one can still read.

    tokens        0 ──────────────────────────── first ══════════════════ n
    checkpoints              ════╡              ════╡

A token at position p reads from position p - window + 1 on. So the newest segments are in memory,
whole, and those that even a cut by 1,024 tokens does not need are freed. A context that is cut back
further goes on from a *checkpoint* before that place, and reads the tokens between again: a
checkpoint holds the tokens that going on from its position needs. There is one at each `every`
tokens, and one at each position that was pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...models.config import ModelConfig
from ...ops.arrays import I64, U8
from ...ops.attention.layout import SEGMENT, TileLayout, n_segments
from .ram.anonymous import Pieces
from .rows import Rows

MOST_WINDOW = 4096
"""Layers with a longer window are stored whole, like those without one: memory holds the window."""
SPACING = 16
"""Segments from one checkpoint to the next, for each 1,024 tokens of the window: checkpoints take a
sixteenth of what the layers would take whole."""


def windows_of(config: ModelConfig) -> tuple[int, ...]:
    """The window of each layer of which only the newest tokens are held, 0 for the others; () if
    all layers are held whole."""
    windows = tuple(layer.window or 0 for layer in config.kv_layers)
    windows = tuple(window if window <= MOST_WINDOW else 0 for window in windows)
    return windows if any(windows) else ()


class WindowedLayers:
    """The layers of one context that have a window; all are held as the widest one needs it.

    first: the first token that memory holds. checkpoints: rows of the tokens base(p) … p - 1 for
    each position p.
    """

    def __init__(self, layout: TileLayout, n_kv_heads: int, windows: Sequence[int]) -> None:
        self.layers = tuple(i for i, window in enumerate(windows) if window)
        self.whole = tuple(i for i, window in enumerate(windows) if not window)
        self.layout, self.n_kv_heads = layout, n_kv_heads
        self.n_before = n_segments(max(windows))
        # Checkpoints are of the ends of segments, or of whole ones, each of which can be replaced.
        self.window = min(max(windows), SEGMENT) * self.n_before
        self.every = SPACING * self.n_before * SEGMENT
        self.rows = Rows(layout, len(self.layers), n_kv_heads)
        self.first = 0
        self.checkpoints: dict[int, U8] = {}
        self._pins: set[int] = set()
        self._layer_bytes = layout.segment_bytes(n_kv_heads)
        self._segment_bytes = self._layer_bytes * len(self.layers)
        self._pieces = Pieces(self._segment_bytes, "another 1,024 tokens of KV cache")
        self._memory: dict[int, tuple[memoryview, int]] = {}
        self._spare: list[tuple[memoryview, int]] = []

    def base(self, n_tokens: int) -> int:
        """The first token that going on after `n_tokens` tokens needs: one window before the open
        segment, which is saved token by token."""
        return max(0, n_tokens // SEGMENT * SEGMENT - self.window)

    def reaches(self, n_tokens: int) -> bool:
        """Whether memory holds all that going on after `n_tokens` tokens needs."""
        return self.base(n_tokens) >= self.first

    def pin(self, n_tokens: int) -> None:
        """Be able to go back to this position, until the context is cut below it."""
        self._pins.add(n_tokens)

    def cut(self, n_tokens: int) -> None:
        """The tokens from `n_tokens` on are dropped."""
        if not self._pins and not self.checkpoints:
            return
        self._pins = {position for position in self._pins if position <= n_tokens}
        for position in [p for p in self.checkpoints if p > n_tokens]:
            del self.checkpoints[position]

    def advance(self, start: int, n_tokens: int) -> bool:
        """Make room for tokens up to n_tokens - 1, and free what they do not need.

        Tokens from `start` on are about to be written. Returns whether a place has changed."""
        first, stop = self.base(start - SEGMENT) // SEGMENT, n_segments(n_tokens)
        regular = range(-(-self.first // self.every) * self.every, start + 1, self.every)
        for position in [*regular, *(p for p in self._pins if p <= start)]:
            if position and self.first <= self.base(position) < first * SEGMENT:
                self.checkpoints[position] = self.take(self.base(position), position)
        before = list(self._memory)
        for segment in before:
            if not first <= segment < stop:
                self._spare.append(self._memory.pop(segment))
        self.first = max(self.first, first * SEGMENT)
        self._have(max(first, self.first // SEGMENT), stop)
        return before != list(self._memory)

    def go_back(self, n_tokens: int) -> int:
        """Hold what is needed to go on after `n_tokens` tokens, or after the newest checkpoint in
        memory before them; returns how many tokens that are."""
        if self.reaches(n_tokens):
            return n_tokens
        position = self.newest(n_tokens)
        if position:
            self.restore(position, self.checkpoints[position])
        else:
            self.restore(0, np.empty((0, self.rows.n_bytes), np.uint8))
        return position

    def newest(self, n_tokens: int) -> int:
        """The newest checkpoint in memory up to `n_tokens`; 0: there is none."""
        return max((p for p in self.checkpoints if p <= n_tokens), default=0)

    def restore(self, position: int, rows: U8) -> None:
        """Hold just these rows, of the tokens before `position`."""
        self._spare += self._memory.values()
        self._memory.clear()
        self.first = position - len(rows)
        self._have(self.first // SEGMENT, n_segments(position))
        self.put(self.first, rows)

    def take(self, first: int, stop: int) -> U8:
        """Rows of tokens first … stop - 1, which memory holds."""
        parts = []
        for segment in range(first // SEGMENT, n_segments(stop)):
            start, end = first - segment * SEGMENT, stop - segment * SEGMENT
            part = self.rows.gather(self._buffer(segment), max(start, 0), min(end, SEGMENT))
            parts.append(part)
        return np.concatenate(parts) if parts else np.empty((0, self.rows.n_bytes), np.uint8)

    def put(self, first: int, rows: U8) -> None:
        """Write rows as tokens from `first` on."""
        done = 0
        while done < len(rows):
            segment, start = divmod(first + done, SEGMENT)
            part = rows[done : done + SEGMENT - start]
            self.rows.scatter(part, self._buffer(segment), start)
            done += len(part)

    def end_of(self, segment: int) -> U8 | None:
        """Rows of the last tokens of a full segment, one window or 1,024, from memory or one of its
        checkpoints; None if they are not there."""
        stop = (segment + 1) * SEGMENT
        first = stop - min(self.window, SEGMENT)
        if first >= self.first and segment in self._memory:
            return self.take(first, stop)
        for position, rows in self.checkpoints.items():
            base = self.base(position)
            if base <= first and stop <= position:
                return rows[first - base : stop - base]
        return None

    def places(self, whole: Sequence[I64], n: int) -> list[I64]:
        """Addresses of `n` segments of all layers, those of the others given; 0 where a segment is
        not held."""
        table = np.zeros((len(self.layers) + len(self.whole), n), np.int64)
        for layer, addresses in zip(self.whole, whole, strict=True):
            table[layer] = addresses
        layers, within = list(self.layers), self._layer_bytes * np.arange(len(self.layers))
        for segment, (_, address) in self._memory.items():
            if segment < n:
                table[layers, segment] = address + within
        return list(table)

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        segments = len(self._memory) + len(self._spare)
        checkpoints = sum(rows.nbytes for rows in self.checkpoints.values())
        return segments * self._segment_bytes + checkpoints

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes that a context of `n_tokens` takes."""
        segments = min(n_segments(n_tokens), self.n_before + 2)
        checkpoints = max(0, n_tokens - 1) // self.every
        return segments * self._segment_bytes + checkpoints * self.window * self.rows.n_bytes

    def _have(self, first: int, stop: int) -> None:
        """Allocate segments first … stop - 1."""
        for segment in range(first, stop):
            if segment not in self._memory:
                n_taken, spare = len(self._memory) + 1, self._spare
                self._memory[segment] = spare.pop() if spare else self._pieces.take(n_taken)

    def _buffer(self, segment: int) -> U8:
        """All bytes of a segment in memory."""
        return np.frombuffer(self._memory[segment][0], np.uint8)
