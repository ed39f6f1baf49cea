"""Counts which tokens of a prompt an answer chose to read, and finds the passages they stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..attend.sparse.options import SparseOptions
from .passages import Lens, Passage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..context import Context

MOST_PASSAGES = 12
AROUND = 8
"""Tokens that a passage shows before and after one that was read: enough to know the place."""
_MARKED = 64
"""One of so many tokens is marked, those that were chosen most: with what stands around them, a
quarter of a text at most."""
_MOST_MARKED = 128


class ChoiceCounter:
    """An observer of choices (`attend.base.ChoiceObserver`) that counts them by position.

    sink, window: the first and last tokens, which are read without being chosen. n_prompt: choices
    of tokens from there on, which the answer wrote itself, are not counted.
    """

    def __init__(self, sink: int, window: int, n_prompt: int) -> None:
        self._sink, self._window = sink, window
        self.choices = np.zeros(n_prompt, np.int64)
        """Of each token, by how many layers, KV heads and steps it was chosen."""
        self.n_read = self.n_stored = 0
        """Tokens over all steps, layers and KV heads."""

    def add(
        self, layer: int, stored: int, lists: NDArray[np.uint32], counts: NDArray[np.int64]
    ) -> None:
        """Count a step of one layer: see `SelectionWriter.add`."""
        stop = min(stored - self._window, self.choices.size)
        for row, n in zip(lists, counts):
            positions = row[:n]
            self.choices[positions[(positions >= self._sink) & (positions < stop)]] += 1
        self.n_read += int(counts.sum())
        self.n_stored += stored * len(counts)


class LensTask:
    """Watches the choices in a context whose prompt was read, until `finish`."""

    def __init__(self, context: Context) -> None:
        self._context, attend = context, context.plan.attend
        self._counter: ChoiceCounter | None = None
        if isinstance(attend, SparseOptions):
            n_prompt = len(context.tokens)
            self._counter = ChoiceCounter(attend.sink, attend.window, n_prompt)
            context.observe(self._counter)

    def finish(self) -> Lens:
        """What was read; nothing is watched any more."""
        context, counter = self._context, self._counter
        context.observe(None)
        if counter is None or not counter.n_stored:
            return Lens(True, 1.0)
        decode, tokens = context.model.tokenizer.decode, context.tokens
        total = int(counter.choices.sum())
        passages = [
            Passage(start, stop, n / total, decode(tokens[start:stop], special=True))
            for start, stop, n in most_chosen(counter.choices)
        ]
        return Lens(False, counter.n_read / counter.n_stored, passages)


def most_chosen(choices: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Where most choices fell: (start, stop, choices within), at most `MOST_PASSAGES`.

    One of 64 tokens (12 to 128 in all) is marked, those that were chosen most, the earlier of
    equals. Each is shown with `AROUND` tokens on both sides; what overlaps or touches is one.
    """
    n = choices.size
    n_marked = min(max(n // _MARKED, MOST_PASSAGES), _MOST_MARKED)
    marked = np.argsort(-choices, kind="stable")[:n_marked]
    places: list[list[int]] = []
    for position in np.sort(marked[choices[marked] > 0]).tolist():
        start, stop = max(position - AROUND, 0), min(position + AROUND + 1, n)
        if places and start <= places[-1][1]:
            places[-1][1] = stop
        else:
            places.append([start, stop])
    found = [(start, stop, int(choices[start:stop].sum())) for start, stop in places]
    return sorted(found, key=lambda place: -place[2])[:MOST_PASSAGES]
