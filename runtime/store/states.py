"""What the layers of a context carry beside K and V: the states of recurrent layers.

A state is that of the tokens read so far, and cannot be cut. So a context keeps copies of it at
positions that it can go back to. To go from N tokens back to t, it goes to the copy before t and
reads the tokens between again: at most `SPACING`, or N - t where that is more. Copies stand closer
together towards the end, so that there are some log2(N / SPACING) of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...ops.device import Array, Device

SPACING = 1024
"""Tokens that going back reads again at most, if it goes back by fewer."""
LEAST_SPACING = 512
"""Tokens from one copy to the next: a pass of a prompt."""
MOST_BYTES = 512 << 20
"""Of all copies; the last one is kept whatever it takes."""


class States:
    """The states of one context's recurrent layers, on a device, and copies of them on the host.

    shapes: of each layer's arrays (`ModelConfig.state_shapes`). Before the first token all are
    zeros.
    """

    def __init__(
        self,
        device: Device,
        shapes: Sequence[Sequence[tuple[int, ...]]],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._device = device
        self.layers = [[device.zeros(shape, np.float32) for shape in layer] for layer in shapes]
        sizes = [int(np.prod(shape)) for layer in shapes for shape in layer]
        self.n_bytes = 4 * sum(sizes)
        """Of one state."""
        self._most_copies = max(1, most_bytes // max(1, self.n_bytes))
        self._copies: dict[int, list[NDArray[np.float32]]] = {}
        self._n_tokens, self._pinned, self._was_prompt = 0, 0, True

    @property
    def positions(self) -> list[int]:
        """The numbers of tokens of which there are copies, ascending."""
        return list(self._copies)

    def begin(self, start: int, n_tokens: int, *, prompt: bool) -> None:
        """A pass reads tokens start … start + n_tokens - 1. `go_back` has gone back to `start`, if
        the state was that of more tokens; a `start` of 0 needs no call."""
        if start == 0:
            self.go_back(0)
        assert start == self._n_tokens, f"the state is of {self._n_tokens} tokens, not {start}"
        ends_prompt = self._was_prompt and not prompt
        if start and (ends_prompt or start - max(self._copies, default=0) >= LEAST_SPACING):
            self._copy()
        self._n_tokens, self._was_prompt = start + n_tokens, prompt

    def go_back(self, n_tokens: int) -> int:
        """Have the state of `n_tokens` tokens, or of the most below that of which there is a copy;
        returns of how many. Copies of more are dropped."""
        if n_tokens == self._n_tokens:
            return n_tokens
        self._copies = {n: copy for n, copy in self._copies.items() if n <= n_tokens}
        self._n_tokens = max(self._copies, default=0)
        arrays = self._arrays()
        if self._n_tokens:
            for array, copy in zip(arrays, self._copies[self._n_tokens], strict=True):
                self._device.put(copy, array)
        else:
            for array in arrays:
                self._device.put(np.zeros(array.shape, np.float32), array)
        return self._n_tokens

    def pin(self, n_tokens: int) -> None:
        """Be able to go back to just `n_tokens`, those read now, until another pin or a cut below
        them."""
        assert n_tokens == self._n_tokens
        self._pinned = n_tokens
        if n_tokens and n_tokens not in self._copies:
            self._copy()

    def _arrays(self) -> list[Array]:
        return [array for layer in self.layers for array in layer]

    def _copy(self) -> None:
        """Copy the state; drop copies that are too close together, then the oldest ones."""
        self._copies[self._n_tokens] = [self._device.get(x).copy() for x in self._arrays()]
        positions = list(self._copies)
        i = 0
        while i + 1 < len(positions):
            before, here, after = (0, *positions)[i : i + 3]
            if here != self._pinned and after - before <= max(SPACING, self._n_tokens - after):
                del positions[i]
            else:
                i += 1
        spare = [n for n in positions[:-1] if n != self._pinned]
        dropped = spare[: max(0, len(positions) - self._most_copies)]
        self._copies = {n: self._copies[n] for n in positions if n not in dropped}
