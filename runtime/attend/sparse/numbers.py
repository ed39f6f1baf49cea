"""The numbers of recorded tokens: what each layer chooses from, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ....ops.cpu import CellNumbers

if TYPE_CHECKING:
    from ....ops.select import Range, Wanted
    from .index import TokenIndex
    from .layers import ChoosingLayers


class Choice(NamedTuple):
    """What a token chooses from, and what it wants of it."""

    among: Range
    wanted: Wanted


class Numbers:
    """Those of one context: layers that choose alike share theirs."""

    def __init__(self, layers: ChoosingLayers) -> None:
        self._layers = layers
        self._alike = list(layers.alike.values())
        self._new = CellNumbers(2)
        self._cells = [CellNumbers(6) for _ in self._alike]
        self._now: list[Choice | None] = [None] * len(self._alike)
        self._group = {layer: n for n, alike in enumerate(self._alike) for layer in alike}
        self.stored = 0
        """Tokens, with the one that is read."""

    def set(self, start: int, index: TokenIndex) -> tuple[bool, ...]:
        """For the token at `start`; returns which groups of layers choose."""
        self.stored = stored = start + 1
        self._new.set((start, stored))
        for n, (first, *_) in enumerate(self._alike):
            among = None if stored < index.least else self._layers.among(first, stored)
            if among is None:
                self._now[n] = None
                continue
            wanted = index.wanted(among, self._layers.takes(first, stored))
            self._now[n] = Choice(among, wanted)
            self._cells[n].set((*among, *wanted))
        return tuple([now is not None for now in self._now])

    def new(self) -> list[int]:
        """The token's position and the next one, as launches find them."""
        return self._new.now()

    def of(self, layer: int) -> Choice | None:
        """What a layer chooses, as launches find it; None if it reads every token."""
        group = self._group.get(layer)
        now = None if group is None else self._now[group]
        if now is None or group is None:
            return None
        among, wanted = now
        cells = self._cells[group].now()
        n = len(among)
        return Choice(type(among)(*cells[:n]), type(wanted)(*cells[n:]))

    def chose(self) -> dict[int, Range]:
        """From what each layer that does chooses."""
        groups = zip(self._alike, self._now, strict=True)
        return {i: now.among for alike, now in groups if now is not None for i in alike}
