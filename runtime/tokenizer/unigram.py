"""SentencePiece's unigram vocabularies as llama.cpp reads them: the tokens of the highest sum of
scores.

Sums of float32 scores are exact in float64, so that ties do not depend on where a sum began: chunks
between which no token stands can be cut one by one, and their ids are cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from .charsmap import Charsmap
from .merge import MergeCache
from .spm import SPACE
from .vocab import Attr, TokenizerError, Vocab

_MATCHED = Attr.NORMAL | Attr.USER_DEFINED | Attr.UNUSED
_UNKNOWN_PENALTY = np.float32(10)
_WORDS, _WORD_LENGTH = 1 << 15, 64  # changed words that are remembered
_LOWEST = -np.finfo(np.float64).max


class Unigram:
    """Ids of text without special tokens."""

    def __init__(self, vocab: Vocab) -> None:
        unknown = vocab.roles.get("unk")
        if unknown is None:
            raise TokenizerError(
                "the file has a unigram vocabulary and no unknown token "
                "(tokenizer.ggml.unknown_token_id)"
            )
        self._unknown, self._ids = unknown, vocab.ids
        scores = np.asarray(vocab.needed_scores, np.float32)
        kinds = [vocab.attr(token) for token in range(vocab.n_vocab)]
        normal = np.array([bool(kind & Attr.NORMAL) for kind in kinds])
        self._unknown_score = float(scores[normal].min(initial=0.0) - _UNKNOWN_PENALTY)
        scores[[bool(kind & Attr.USER_DEFINED) for kind in kinds]] = 0.0
        self._scores: dict[str, float] = {}
        self._longest: dict[str, int] = {}
        for text, score, kind in zip(vocab.tokens, scores.tolist(), kinds):
            if kind & _MATCHED:
                self._scores[text] = score
                self._longest[text[0]] = max(len(text), self._longest.get(text[0], 0))
        joined = any(SPACE in text.lstrip(SPACE) for text in self._scores)
        self._chunks = re.compile("(?s).+" if joined else f"{SPACE}*[^{SPACE}]+|{SPACE}+").findall
        self._charsmap = Charsmap(vocab.charsmap)
        self._changed_word = lru_cache(_WORDS)(self._changed)
        self._prefix, self._merges = vocab.add_space_prefix, vocab.remove_extra_whitespaces
        self._cache = MergeCache(self._best)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        if not self._charsmap.in_words:
            return self._encode(self._changed(text))
        words = (
            self._changed_word(word) if len(word) <= _WORD_LENGTH else self._changed(word)
            for word in text.split(" ")
        )
        return self._encode(" ".join(words))

    def encode_raw(self, raw: bytes) -> list[int]:
        """Ids of bytes that are not UTF-8."""
        return self._encode(self._charsmap.apply(raw).decode("utf-8", "surrogateescape"))

    def _changed(self, text: str) -> str:
        return self._charsmap.apply(text.encode()).decode("utf-8", "replace")

    def _encode(self, text: str) -> list[int]:
        """Ids of a text whose characters were changed; of several unknown tokens the first."""
        ids = self._cache.encode(self._chunks(self._spaced(text)))
        unknown = self._unknown
        if unknown not in ids:
            return ids
        return [i for i, before in zip(ids, [-1, *ids]) if i != unknown or before != unknown]

    def _spaced(self, text: str) -> str:
        """The text with "▁" for its spaces."""
        if self._merges:
            return "".join(SPACE + word for word in text.split(" ") if word)
        bare = text.lstrip(" ")
        if self._prefix and bare:
            text = " " * (len(text) - len(bare) + 1) + bare
        return text.replace(" ", SPACE)

    def _best(self, chunk: str) -> list[int]:
        """The tokens of the highest sum; of equal ones the first found, as in llama.cpp."""
        sums = [0.0] + [_LOWEST] * len(chunk)
        starts = [0] * len(sums)
        score_of, longest = self._scores.get, self._longest.get
        for start in range(len(chunk)):
            before = sums[start]
            alone = False
            last = min(len(chunk), start + longest(chunk[start], 0))
            for stop in range(start + 1, last + 1):
                score = score_of(chunk[start:stop])
                if score is None:
                    continue
                alone = alone or stop == start + 1
                if before + score > sums[stop]:
                    sums[stop], starts[stop] = before + score, start
            if not alone and before + self._unknown_score > sums[start + 1]:
                sums[start + 1], starts[start + 1] = before + self._unknown_score, start
        return list(self._backwards(chunk, starts))[::-1]

    def _backwards(self, chunk: str, starts: list[int]) -> Iterable[int]:
        stop = len(chunk)
        while stop:
            text = chunk[starts[stop] : stop]
            yield self._ids[text] if text in self._scores else self._unknown
            stop = starts[stop]
