"""The passages of a text that weigh most, with their places."""

from __future__ import annotations

from itertools import pairwise
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
_MOST_OF_WORD = 16
"""Tokens of a word; longer runs of letters are of scripts that put no spaces between words."""


def heaviest(
    weights: NDArray[np.float64],
    borders: Sequence[int] = (),
    words: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None,
) -> list[tuple[int, int, float]]:
    """Where most weight fell: (start, stop, weight within), at most `MOST_PASSAGES`.

    One of 64 tokens (12 to 128 in all) is marked, those that weigh most, the earlier of equals.
    Each is shown with `AROUND` tokens on both sides; what overlaps or touches is one. borders:
    positions, in order, that no passage crosses: it ends before them, or begins there. words: of
    each token, where its word begins and stops; passages hold whole words.
    """
    n = weights.size
    first, stops = words or (np.arange(n), np.arange(1, n + 1))
    n_marked = min(max(n // _MARKED, MOST_PASSAGES), _MOST_MARKED)
    marked = np.argsort(-weights, kind="stable")[:n_marked]
    marked = np.sort(marked[weights[marked] > 0])
    bounds = np.array([0, *borders, n])
    parts = np.searchsorted(bounds, marked, side="right")
    places: list[list[int]] = []
    last = -1
    for position, part in zip(marked.tolist(), parts.tolist()):
        start = max(int(first[max(position - AROUND, 0)]), int(bounds[part - 1]))
        stop = min(int(stops[min(position + AROUND, n - 1)]), int(bounds[part]))
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

    A passage holds whole words, and ends with its source, page and document. Its place is that of
    its heaviest token. sources: parts of the tokens, in order; what stands between them weighs 0.
    """
    decode, borders, texts = tokenizer.decode, [], []
    first = np.arange(weights.size)
    stops = first + 1
    for source in sources:
        part = tokens[source.start : source.stop]
        pieces = [tokenizer.piece(token) for token in part]
        within = slice(source.start, source.stop)
        first[within], stops[within] = (source.start + bound for bound in word_bounds(pieces))
        texts.append(decode(part))
        inner = borders_of(texts[-1], pieces)
        borders += [source.start, *(source.start + border for border in inner), source.stop]
    starts = [source.start for source in sources]
    quotes = []
    for start, stop, share in heaviest(weights, borders, (first, stops)):
        peak = start + int(weights[start:stop].argmax())
        index = int(np.searchsorted(starts, peak, side="right")) - 1
        source = sources[index]
        place = place_of(texts[index], len(decode(tokens[source.start : peak])))
        text = decode(tokens[start:stop])
        if text.strip():
            quotes.append(Passage(start, stop, share, text, f"{source.name}{place}"))
    return quotes


def word_bounds(pieces: Sequence[bytes]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of each token, where the word that it is a part of begins, and where it stops, as numbers of
    tokens. Tokens of more than `_MOST_OF_WORD` letters' tokens in a row stand alone."""
    n, texts = len(pieces), [piece.decode("utf-8", "replace") for piece in pieces]
    begins = [True, *(not (_in_word(a[-1:]) and _in_word(b[:1])) for a, b in pairwise(texts))]
    starts = np.flatnonzero(begins[:n])
    lengths = np.diff(starts, append=n)
    lengths_of = np.repeat(lengths, lengths)
    first, alone = np.repeat(starts, lengths), np.arange(n)
    is_word = lengths_of <= _MOST_OF_WORD
    return np.where(is_word, first, alone), np.where(is_word, first + lengths_of, alone + 1)


def _in_word(character: str) -> bool:
    """Whether words have such a character; U+FFFD stands for a part of one."""
    return character.isalnum() or (character != "" and character in "'’_\ufffd")
