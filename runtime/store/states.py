"""What layers carry from token to token besides K and V, and copies of it to go back to.

    tokens     0 ─────────┬─────────┬────┬──┬─┬─ n
    checkpoints             │         │    │  │ │   the states after so many tokens

Recurrent layers have a state after the last token only. A context that is cut back goes on from a
*checkpoint* before that place, and reads the tokens between again. Checkpoints stand at every 512th
token near the end and at growing distances before it, so that a cut by n tokens reads at most
max(512, n) of them again; and where the context was pinned. Together they take a bounded number of
bytes: where that is too few, cuts read more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ...jit.arena import aligned
from ...models.config import ModelConfig
from ...ops.arrays import F32

Shapes = Sequence[Sequence[tuple[int, ...]]]
"""Of the arrays of each layer that carries a state."""
SPACING = 512
"""Tokens between checkpoints near the end."""
NEAR = 3
"""How many checkpoints are held of each spacing: 512, 1,024, 2,048 … tokens."""
MOST_BYTES = 512 << 20
"""Of all checkpoints; one of a model of 27B parameters takes 150 MB."""
_ALIGNMENT = 16  # floats of a cache line


class States:
    """The states of one context, and its checkpoints in memory.

    n_tokens: after how many tokens the arrays are the states; None while a pass has begun and not
    ended. limit: bytes of checkpoints, of which the newest one is held whatever it takes. pins: the
    positions that were pinned; most: how many checkpoints are held.
    """

    def __init__(self, shapes: Shapes, limit: int = MOST_BYTES) -> None:
        sizes = [[int(np.prod(shape)) for shape in layer] for layer in shapes]
        rounded = [[-(-n // _ALIGNMENT) * _ALIGNMENT for n in layer] for layer in sizes]
        self.memory: F32 = aligned((sum(map(sum, rounded)),), np.float32)
        self.memory.fill(0.0)
        self._layers, first = [], 0
        for layer, whole, places in zip(shapes, sizes, rounded):
            arrays = []
            for shape, n, place in zip(layer, whole, places):
                arrays.append(self.memory[first : first + n].reshape(shape))
                first += place
            self._layers.append(tuple(arrays))
        self.n_tokens: int | None = 0
        self.checkpoints: dict[int, F32] = {}
        self.pins: set[int] = set()
        self.most = max(1, limit // max(1, self.memory.nbytes))
        self._undo = np.empty_like(self.memory)
        self._undo_at: int | None = None

    def of(self, layer: int) -> Sequence[F32]:
        """The arrays of layer number `layer` of those that carry a state; the same ones always."""
        return self._layers[layer]

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return self.memory.nbytes * (2 + len(self.checkpoints))

    def reaches(self, n_tokens: int) -> bool:
        """Whether the arrays are the states after `n_tokens` tokens."""
        return self.n_tokens == n_tokens

    def begin(self, start: int, n_tokens: int) -> None:
        """A pass reads tokens from `start` on, which the arrays must reach.

        One of several tokens can be undone: it may be stopped, or have read a draft.
        """
        assert self.reaches(start), f"states after {self.n_tokens} tokens, expected {start}"
        if start and start % SPACING == 0:
            self._add(start)
        if n_tokens > 1:
            self._undo[:], self._undo_at = self.memory, start
        self.n_tokens = None

    def end(self, n_tokens: int) -> None:
        """The pass has ended, after so many tokens in all."""
        self.n_tokens = n_tokens

    def cut(self, n_tokens: int) -> None:
        """The tokens from `n_tokens` on are dropped."""
        self.pins = {position for position in self.pins if position <= n_tokens}
        for position in [p for p in self.checkpoints if p > n_tokens]:
            del self.checkpoints[position]
        if self._undo_at is not None and self._undo_at > n_tokens:
            self._undo_at = None

    def pin(self, n_tokens: int) -> None:
        """Be able to go back to `n_tokens`, until the context is cut below it; only where the
        arrays reach it."""
        if n_tokens and self.reaches(n_tokens):
            self.pins.add(n_tokens)
            self._add(n_tokens)

    def newest(self, n_tokens: int) -> int:
        """The newest position up to `n_tokens` that memory can go back to."""
        known = [position for position in self.checkpoints if position <= n_tokens]
        if self._undo_at is not None and self._undo_at <= n_tokens:
            known.append(self._undo_at)
        return max(known, default=0)

    def go_back(self, n_tokens: int) -> int:
        """Return to the states after `n_tokens` tokens, or to the newest older ones in memory.

        Returns their position."""
        if self.reaches(n_tokens):
            return n_tokens
        position = self.newest(n_tokens)
        if position in self.checkpoints:
            self.restore(position, self.checkpoints[position])
        elif position:
            self.restore(position, self._undo)
        else:
            self.memory.fill(0.0)
            self.n_tokens = 0
        return position

    def skip_to(self, n_tokens: int) -> None:
        """Take the arrays for the states after `n_tokens` tokens, which nobody has read."""
        self.n_tokens = n_tokens

    def restore(self, position: int, states: F32) -> None:
        """Take over these states of the first `position` tokens."""
        self.memory[:] = states
        self.n_tokens = position

    def _add(self, n_tokens: int) -> None:
        if n_tokens not in self.checkpoints:
            self.checkpoints[n_tokens] = self.memory.copy()
        kept = set(positions_to_keep(self.checkpoints, self.pins, n_tokens, self.most))
        for position in [p for p in self.checkpoints if p not in kept]:
            del self.checkpoints[position]


def states_of(config: ModelConfig) -> States | None:
    """The states of a new context, all zeros; None if no layer carries a state."""
    return States(config.state_shapes) if config.state_shapes else None


def positions_to_keep(
    positions: Collection[int], pins: Collection[int], n_tokens: int, most: int
) -> list[int]:
    """The positions that a context of `n_tokens` tokens keeps, sorted, at most `most`.

    These are the pinned ones, and the last `NEAR` multiples of each spacing. Where there are too
    many, those go first whose neighbours are near, relative to their distance from the end."""
    near, spacing = {n_tokens, *pins}, SPACING
    while spacing <= n_tokens:
        end = n_tokens // spacing
        near.update(spacing * i for i in range(max(1, end - NEAR + 1), end + 1))
        spacing *= 2
    kept = sorted(p for p in set(positions) if p in near)
    while len(kept) > most:
        ends = [0, *kept, n_tokens]
        costs = [
            (p in pins, (ends[i + 2] - ends[i]) / (n_tokens - ends[i] + 1), p)
            for i, p in enumerate(kept[:-1])
        ]
        kept.remove(min(costs)[2])
    return kept
