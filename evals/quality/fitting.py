"""Makes samples of a length that is given in a model's tokens."""

from __future__ import annotations

from collections.abc import Callable

from ..tasks import Sample
from .errors import EvalError

CHARS_PER_TOKEN = 4.0
"""Where the search begins: typical of English."""
SLACK = 0.02
ATTEMPTS = 24


def fit(
    make: Callable[[int], Sample], n_tokens: Callable[[str], int], length: int, what: str
) -> Sample:
    """A sample of `make(characters)` whose context has 98% to 100% of `length` tokens, or as many
    as whole sentences allow.

    The first guesses are proportional; then it bisects between a number of characters that fits
    and one that does not.
    Raises `EvalError` where not even the shortest context fits.
    """
    best: tuple[int, Sample] | None = None
    fits, exceeds = 0, 0
    n_chars = int(CHARS_PER_TOKEN * length)
    for _ in range(ATTEMPTS):
        sample = make(n_chars)
        n = n_tokens(sample.context)
        if n > length:
            exceeds = n_chars
        else:
            fits = max(fits, n_chars)
            if best is None or n > best[0]:
                best = n, sample
            if n >= (1 - SLACK) * length:
                break
        guess = int(n_chars * (1 - SLACK / 2) * length / max(1, n))
        if exceeds and not fits < guess < exceeds:
            guess = (fits + exceeds) // 2
        if guess in (fits, exceeds, n_chars):
            break
        n_chars = guess
    if best is None:
        raise EvalError(f"{what} does not fit in {length:,} tokens: use a larger --length")
    return best[1]
