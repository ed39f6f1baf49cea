"""How many of its best tokens each process is asked for, so that few are sent that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""The tokens first … last - 1 of a process that compete."""
_SPARE = 5 / 4
_MORE = 32
"""What a process is asked for is so many times what is expected of it, and so much more."""
_STEP = 64
"""And a multiple of this: the answers to few questions are recorded."""


class Shares:
    """What each process gave of the best tokens of a layer, which the next token expects again."""

    def __init__(self) -> None:
        self._given: dict[int, list[int]] = {}

    def plan(self, layer: int, spans: Sequence[Span], k: int) -> tuple[list[int], list[int]]:
        """How many tokens each process is asked for where k of all are wanted, and the most that it
        could be."""
        sizes = [last - first for first, last in spans]
        most = [min(k, size) for size in sizes]
        given = self._given.get(layer)
        if given is None:  # of tokens that are alike
            given = [k * size // sum(sizes) for size in sizes]
        asked = [-(-(int(_SPARE * one) + _MORE) // _STEP) * _STEP for one in given]
        return [min(n, m) for n, m in zip(asked, most)], most

    def update(self, layer: int, given: list[int]) -> None:
        """Remember how many of its tokens each process gave, to the query head that took most. One
        that gives fewer than before may soon give as many again: to ask twice costs most."""
        before = self._given.get(layer, given)
        self._given[layer] = [max(n, (7 * old + n) // 8) for n, old in zip(given, before)]
