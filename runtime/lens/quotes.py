"""The passages of a text that weigh most, with their places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .passages import MOST_PASSAGES, Passage, Source
from .places import borders_of, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..tokenizer import Tokenizer

AROUND = 8
"""Tokens that a passage shows before and after one that weighs much: enough to know the place."""
_MARKED = 64
"""One of so many tokens is marked, those that weigh most: with what stands around them, a quarter
of a text at most."""
_MOST_MARKED = 128


def heaviest(
    weights: NDArray[np.float64], borders: Sequence[int] = ()
) -> list[tuple[int, int, float]]:
    """Where most weight fell: (start, stop, weight within), at most `MOST_PASSAGES`.

    One of 64 tokens (12 to 128 in all) is marked, those that weigh most, the earlier of equals.
    Each is shown with `AROUND` tokens on both sides; what overlaps or touches is one. borders:
    positions, in order, that no passage crosses: it ends before them, or begins there.
    """
    n = weights.size
    n_marked = min(max(n // _MARKED, MOST_PASSAGES), _MOST_MARKED)
    marked = np.argsort(-weights, kind="stable")[:n_marked]
    marked = np.sort(marked[weights[marked] > 0])
    bounds = np.array([0, *borders, n])
    parts = np.searchsorted(bounds, marked, side="right")
    places: list[list[int]] = []
    last = -1
    for position, part in zip(marked.tolist(), parts.tolist()):
        start = max(position - AROUND, int(bounds[part - 1]))
        stop = min(position + AROUND + 1, int(bounds[part]))
        if part == last and start <= places[-1][1]:
            places[-1][1] = stop
        else:
            places.append([start, stop])
        last = part
    weighed = [(start, stop, float(weights[start:stop].sum())) for start, stop in places]
    return sorted(weighed, key=lambda place: -place[2])[:MOST_PASSAGES]


def quotes_of(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    weights: NDArray[np.float64],
    sources: Sequence[Source],
) -> list[Passage]:
    """Find the passages of the sources that weigh most, the heaviest first.

    A passage ends with its source, page and document. Its place is that of its heaviest token.
    sources: parts of the tokens, in order; what stands between them weighs 0.
    """
    decode, borders, texts = tokenizer.decode, [], []
    for source in sources:
        part = tokens[source.start : source.stop]
        texts.append(decode(part))
        inner = borders_of(texts[-1], [tokenizer.piece(token) for token in part])
        borders += [source.start, *(source.start + border for border in inner), source.stop]
    starts = [source.start for source in sources]
    quotes = []
    for start, stop, share in heaviest(weights, borders):
        peak = start + int(weights[start:stop].argmax())
        index = int(np.searchsorted(starts, peak, side="right")) - 1
        source = sources[index]
        place = place_of(texts[index], len(decode(tokens[source.start : peak])))
        text = decode(tokens[start:stop])
        if text.strip():
            quotes.append(Passage(start, stop, share, text, f"{source.name}{place}"))
    return quotes
