"""DRY ("don't repeat yourself"): smaller logits for tokens that would go on with a repetition."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache

import numpy as np

from ..tokenizer import Tokenizer
from .candidates import Candidates, Ids
from .options import SamplingOptions

_MOST_TAIL = 20
"""Tokens of a breaker after its first that are compared, as llama.cpp's `MAX_SEQ_LEN`."""
_LOG_LARGEST = 88.7228391
"""log of the largest float32: no power is larger."""

Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""First token → the tokens that follow it, (): none, in each way to spell a breaker."""


class Repetitions:
    """The last tokens, and which next ones repeat what stood there. n: how many; −1: all."""

    def __init__(self, options: SamplingOptions, tokenizer: Tokenizer | None) -> None:
        self._options = options
        texts = tuple(options.dry_sequence_breakers)
        self._breakers = breakers_of(tokenizer, texts) if tokenizer and texts else {}
        self._tokens = array("q")

    def copy(self) -> Repetitions:
        """The same tokens, which go on by themselves."""
        other = copy(self)
        other._tokens = self._tokens[:]
        return other

    def add(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        self._tokens.extend(iter(ids))  # an array extends no array of other items
        n = self._options.dry_penalty_last_n
        if n >= 0 and len(self._tokens) > 2 * n + 1024:
            del self._tokens[:-n]

    def penalise(self, candidates: Candidates) -> Candidates:
        """Candidates with l − multiplier · base ^ (n − allowed) for those that would follow a
        repetition of n >= allowed tokens; a token that is a breaker alone keeps its logit.

        n: tokens at the end of the context that stand, as they are, before an earlier occurrence of
        the candidate; none of them is before the last breaker.
        Source: llama.cpp's `llama_sampler_dry`. Cost: one comparison of all n tokens, and one of
        what is left for each token of the longest repetition.
        """
        options = self._options
        lengths = self._lengths()
        lengths = {t: n for t, n in lengths.items() if () not in self._breakers.get(t, ())}
        if not lengths:
            return candidates
        indices, seen = candidates.find(np.fromiter(lengths, np.intp, len(lengths)))
        base, allowed = float(options.dry_base), options.dry_allowed_length
        most = int(_LOG_LARGEST / math.log(base)) if base > 1.000001 else 0
        powers = np.fromiter(lengths.values(), np.int64, len(lengths))[seen] - allowed
        if most:
            powers = np.minimum(powers, most)
        with np.errstate(over="ignore"):
            penalties = (options.dry_multiplier * base**powers).astype(np.float32)
        return candidates.changed(indices, candidates.logits[indices] - penalties)

    def _lengths(self) -> dict[int, int]:
        """Token → of how many tokens it would go on with a repetition, if that is penalised."""
        n, allowed = self._options.dry_penalty_last_n, self._options.dry_allowed_length
        tokens = np.frombuffer(self._tokens, np.int64) if self._tokens else np.empty(0, np.int64)
        tokens = tokens[-n:] if n > 0 else tokens
        most = self._most_repeated(tokens)
        if tokens.size <= allowed or most < allowed:
            return {}
        ends = np.arange(tokens.size - 1)
        lengths = np.zeros(tokens.size - 1, np.int64)
        for length in range(1, most + 1):
            ends = ends[ends >= length - 1]
            ends = ends[tokens[ends - (length - 1)] == tokens[-length]]
            if not ends.size:
                break
            lengths[ends] = length
        longest: dict[int, int] = {}
        for end in np.flatnonzero(lengths >= allowed):
            token = int(tokens[end + 1])
            longest[token] = max(longest.get(token, 0), int(lengths[end]))
        return longest

    def _most_repeated(self, tokens: Ids) -> int:
        """How many tokens stand after the last breaker; a repetition is no longer."""
        if not self._breakers:
            return int(tokens.size)
        for i in range(tokens.size):
            tails = self._breakers.get(int(tokens[-1 - i]), ())
            following = tuple(tokens[tokens.size - i : tokens.size - i + _MOST_TAIL].tolist())
            matches = [len(tail) for tail in tails if tail == following[: len(tail)]]
            if matches:
                return i - max(matches)
        return int(tokens.size)


@lru_cache(maxsize=4)
def breakers_of(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    """The tokens that spell breakers. Cost: a pass over the vocabulary, 0.1 s for 50K tokens.

    A token that contains a breaker is one alone. One that ends with the beginning of a breaker is
    the first of it, and the tokens of the rest follow.
    """
    wanted = [text.encode("utf-8", "surrogatepass") for text in texts]
    breakers: dict[int, tuple[tuple[int, ...], ...]] = {}
    for token in range(tokenizer.n_vocab):
        word = tokenizer.decode_bytes((token,), special=True)
        tails = {tail for text in wanted for tail in _tails(tokenizer, word, text)}
        if tails:
            breakers[token] = tuple(sorted(tails))
    return breakers


def _tails(tokenizer: Tokenizer, word: bytes, text: bytes) -> list[tuple[int, ...]]:
    if text in word:
        return [()]
    starts = (n for n in range(1, len(text)) if word.endswith(text[:n]))
    return [tuple(tokenizer.encode(text[n:])[:_MOST_TAIL]) for n in starts]
