"""A tokenizer of kvarn as llguidance's, which computes masks over its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...tokenizer import Tokenizer
from ...tokenizer.vocab import HIDDEN

_SPECIAL = b"\xff"
"""The first byte of tokens that no text may match; it is no byte of UTF-8."""
_BEFORE = "\x02"
"""A byte before a text, so that SentencePiece's space does not stand in it."""


class _Words:
    """What llguidance reads of a tokenizer: the bytes of each token, and ids of bytes."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, n_words: int, eos: int) -> None:
        self.eos_token_id, self.bos_token_id = eos, tokenizer.bos_id
        self.special_token_ids: list[int] = []
        self.tokens: list[bytes] = []
        for token in range(n_words):
            piece = tokenizer.piece(token) if token < tokenizer.n_vocab else b""
            if not piece or tokenizer.attr(token) & HIDDEN or token in tokenizer.eog_ids:
                self.special_token_ids.append(token)
                piece = _SPECIAL + (piece or b"[%d]" % token)
            self.tokens.append(piece)
        self._encode = tokenizer.encode
        n_before = len(tokenizer.encode(_BEFORE))
        self._n_before = n_before if self._spelt(tokenizer.encode("a")) != b"a" else 0
        self._ids = {piece: token for token, piece in enumerate(self.tokens)}

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids that spell the text: the tokenizer's, or the longest tokens one after another."""
        raw = text.encode() if isinstance(text, str) else text
        if self._n_before:
            ids = self._encode(_BEFORE.encode() + raw)[self._n_before :]
        else:
            ids = self._encode(raw)
        return ids if self._spelt(ids) == raw else self._longest(raw)

    def _spelt(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in ids)

    def _longest(self, raw: bytes) -> list[int]:
        ids: list[int] = []
        while raw:
            size = next((n for n in range(min(len(raw), 64), 0, -1) if raw[:n] in self._ids), 0)
            if not size:
                break
            ids.append(self._ids[raw[:size]])
            raw = raw[size:]
        return ids


@lru_cache(maxsize=2)
def vocabulary_of(tokenizer: Tokenizer) -> Any:
    """An `LLTokenizer` of the tokenizer: 2 s for 128K tokens, kept for the last two.

    Where nothing ends generation, a token after the last one does, which is never sampled.
    """
    from llguidance import LLTokenizer

    ends = sorted(tokenizer.eog_ids) or [tokenizer.n_vocab]
    n_words = max(tokenizer.n_vocab, ends[-1] + 1)
    return LLTokenizer(_Words(tokenizer, n_words, ends[0]), eos_token=ends)


@lru_cache(maxsize=2)
def control_tokens(tokenizer: Tokenizer) -> Mapping[str, int]:
    """The control tokens that do not end generation, by their spelling."""
    tokens = (i for i in range(tokenizer.n_vocab) if tokenizer.attr(i) & HIDDEN)
    return {tokenizer.text_of(i): i for i in tokens if i not in tokenizer.eog_ids}
