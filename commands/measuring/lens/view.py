"""What a page shows of recorded selections: generated tokens, parts, and what was read of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....system.errors import KvarnError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ....runtime.attend.selections import Selection, Selections

MOST_STEPS = 1024
"""Generated tokens of one page."""
LEAST_PART = 32
USUAL_PARTS = 1024
MOST_PARTS = 4096
"""Each part takes at least a pixel of the page's width."""


@dataclass(frozen=True)
class View:
    """The steps of one page.

    tokens: ids of the context, uint32 (T,). layers: numbers of those that chose; the others read
    all they may. steps: position of the token that each step read, ascending; the step wrote the
    token after it. recorded: steps of the file. part: tokens of a part.
    """

    selections: Selections
    tokens: NDArray[np.uint32]
    layers: list[int]
    chosen: dict[int, dict[int, Selection]]
    """Of each step, what each of the layers chose."""
    recorded: int
    part: int

    @staticmethod
    def of(selections: Selections, part: int | None, skip: int) -> View:
        """The steps after the first `skip`, and parts of `part` tokens.

        Raises `KvarnError` if there are none, or more than `MOST_PARTS` parts.
        """
        n_tokens = len(selections.tokens)
        recorded: dict[int, dict[int, Selection]] = {}
        for layer, steps in enumerate(selections.layers):
            for step in steps:  # of two for one position, the later one holds
                if 0 < step.stored <= n_tokens:
                    recorded.setdefault(step.stored - 1, {})[layer] = step
        if skip >= len(recorded):
            raise KvarnError(
                f"{len(recorded):,} generated tokens chose what they read when this was recorded, "
                f"none after the first {skip:,}"
                if recorded
                else "nothing was selected when this was recorded: the first generated token "
                "chooses nothing, and short contexts are read whole"
            )
        kept = sorted(recorded)[skip : skip + MOST_STEPS]
        part = part or usual_part(n_tokens)
        if -(-n_tokens // part) > MOST_PARTS:
            raise KvarnError(
                f"{-(-n_tokens // part):,} parts of {part:,} tokens are too many, at most "
                f"{MOST_PARTS:,} fit on a page: use --part {-(-n_tokens // MOST_PARTS)} or more"
            )
        layers = sorted({layer for position in kept for layer in recorded[position]})
        chosen = {position: recorded[position] for position in kept}
        return View(selections, selections.tokens, layers, chosen, len(recorded), part)

    @property
    def steps(self) -> list[int]:
        return list(self.chosen)

    @property
    def n_parts(self) -> int:
        return -(-len(self.tokens) // self.part)

    def overview(self) -> NDArray[np.uint32]:
        """Tokens that each step read of each part, over all layers and heads: uint32 (steps,
        parts)."""
        counts = np.zeros((len(self.chosen), self.n_parts), np.uint32)
        for step, layers in enumerate(self.chosen.values()):
            for selection in layers.values():
                for positions in selection.lists:
                    read = np.bincount(positions // self.part, minlength=self.n_parts)
                    counts[step] += read.astype(np.uint32)
        return counts

    def numbers(self, position: int) -> NDArray[np.uint32]:
        """What a step read: for each of `layers` 0 if it did not choose, else 1 and for each KV
        head its number of tokens, and the differences between their positions, the first from 0."""
        parts: list[NDArray[np.uint32]] = []
        for layer in self.layers:
            selection = self.chosen[position].get(layer)
            parts.append(np.array([selection is not None], np.uint32))
            for positions in () if selection is None else selection.lists:
                parts.append(np.array([len(positions)], np.uint32))
                parts.append(np.diff(positions, prepend=np.uint32(0)))
        return np.concatenate(parts)


def usual_part(n_tokens: int) -> int:
    """The least power of two from `LEAST_PART` on that gives at most `USUAL_PARTS` parts."""
    part = LEAST_PART
    while -(-n_tokens // part) > USUAL_PARTS:
        part *= 2
    return part
