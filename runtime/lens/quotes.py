"""The passages of a text that weigh most, with their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .passages import Passage
from .places import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..tokenizer import Tokenizer

MOST_PASSAGES = 12
AROUND = 8
"""Tokens that a passage shows before and after one that weighs much: enough to know the place."""
_MARKED = 64
"""One of so many tokens is marked, those that weigh most: with what stands around them, a quarter
of a text at most."""
_MOST_MARKED = 128


def heaviest(weights: NDArray[np.float64]) -> list[tuple[int, int, float]]:
    """The heaviest passages: (start, stop, weight within), at most `MOST_PASSAGES`.

    One of 64 tokens (12 to 128 in all) is marked, those that weigh most, the earlier of equals.
    Each is shown with `AROUND` tokens on both sides; what overlaps or touches is one.
    """
    n = weights.size
    n_marked = min(max(n // _MARKED, MOST_PASSAGES), _MOST_MARKED)
    marked = np.argsort(-weights, kind="stable")[:n_marked]
    places: list[list[int]] = []
    for position in np.sort(marked[weights[marked] > 0]).tolist():
        start, stop = max(position - AROUND, 0), min(position + AROUND + 1, n)
        if places and start <= places[-1][1]:
            places[-1][1] = stop
        else:
            places.append([start, stop])
    weighed = [(start, stop, float(weights[start:stop].sum())) for start, stop in places]
    return sorted(weighed, key=lambda place: -place[2])[:MOST_PASSAGES]


def quotes_of(
    tokenizer: Tokenizer, tokens: Sequence[int], weights: NDArray[np.float64], n_pack: int
) -> list[Passage]:
    """The passages of tokens that weigh most, the heaviest first. Places are those in the text of
    the first `n_pack` tokens, of a pack; of others, in what follows it."""
    decode = tokenizer.decode
    texts = decode(tokens[:n_pack]), decode(tokens[n_pack:])
    quotes = []
    for start, stop, share in heaviest(weights):
        middle = (start + stop) // 2
        in_pack = middle < n_pack
        offset = len(decode(tokens[0 if in_pack else n_pack : middle]))
        place = place_of(texts[0 if in_pack else 1], offset)
        if n_pack and not in_pack:
            place = f"prompt, {place}"
        quotes.append(Passage(start, stop, share, decode(tokens[start:stop]), place))
    return quotes
