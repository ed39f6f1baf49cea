"""The list of tokens while a vocabulary is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....models.config.bounds import MAX_VOCAB
from ...errors import ConvertError
from ..files.jsons import brief
from .sentencepiece import PieceType

_NUMBER = re.compile("[0-9]{1,10}", re.ASCII)
# Scores of ids without a piece, and of added tokens, as llama.cpp's converter has them.
PAD_SCORE = -10_000.0
ADDED_SCORE = -1000.0
# Control tokens that some models do not mark as special.
_SPECIAL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_SPECIAL_ENDS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


@dataclass
class Tokens:
    """Texts, scores and kinds by id."""

    texts: list[str]
    scores: list[float]
    types: list[PieceType]

    @staticmethod
    def unused(n: int) -> Tokens:
        """`n` ids that no file names yet; `ConvertError` for an absurd number."""
        if not 0 < n <= MAX_VOCAB:
            raise ConvertError(f"a vocabulary of {n:,} tokens: expected 1 to {MAX_VOCAB:,}")
        texts = [f"[PAD{i}]" for i in range(n)]
        return Tokens(texts, [PAD_SCORE] * n, [PieceType.UNUSED] * n)

    def set(self, token: int, text: str, score: float, kind: PieceType) -> None:
        """Set a token; `ConvertError` for an id beyond the vocabulary."""
        if not 0 <= token < len(self.texts):
            raise ConvertError(
                f"token {brief(text)} has id {token}, beyond the {len(self.texts)} of config.json's"
                " vocab_size"
            )
        self.texts[token], self.scores[token], self.types[token] = text, score, kind

    def first_of_several_bytes(self) -> str | None:
        """The first normal token of a byte-level vocabulary that is longer than one byte."""
        normal = (t for t, kind in zip(self.texts, self.types) if kind is PieceType.NORMAL)
        return next((text for text in normal if len(text) > 1), None)

    def set_added(self, token: int, text: str, special: bool, as_listed: bool = False) -> None:
        """An added token: control where it is special, or looks so unless `as_listed`.

        Others are matched in the text before it is normalised: "▁" in them is a space.
        """
        if special or (not as_listed and _looks_special(text)):
            self.set(token, text, ADDED_SCORE, PieceType.CONTROL)
        else:
            plain = text if as_listed else text.replace("▁", " ")
            self.set(token, plain, ADDED_SCORE, PieceType.USER_DEFINED)


def _looks_special(text: str) -> bool:
    """Whether a token's text is that of a control token."""
    return text in _SPECIAL_TEXTS or any(
        text.startswith(start) and text.endswith(end) for start, end in _SPECIAL_ENDS
    )


def added_tokens(
    saved: Mapping[str, Any], settings: Mapping[str, Any], listed: Mapping[str, Any]
) -> Iterator[tuple[int, str, bool]]:
    """Id, text and whether it is special of every added token, later ones overruling earlier.

    From added_tokens.json (`listed`), tokenizer.json (`saved`) and tokenizer_config.json
    (`settings`); `ConvertError` for entries that are none.
    """
    listings: list[tuple[Any, Any]] = [(token, {"content": text}) for text, token in listed.items()]
    entries, decoder = saved.get("added_tokens") or [], settings.get("added_tokens_decoder") or {}
    if not isinstance(entries, list) or not isinstance(decoder, Mapping):
        raise ConvertError("the added tokens of the tokenizer are neither a list nor an object")
    listings += [
        (entry.get("id") if isinstance(entry, Mapping) else None, entry) for entry in entries
    ]
    listings += decoder.items()
    for token, entry in listings:
        number = int(token) if isinstance(token, str) and _NUMBER.fullmatch(token) else token
        text = entry.get("content") if isinstance(entry, Mapping) else None
        if type(number) is not int or not 0 <= number < 1 << 31 or not isinstance(text, str):
            raise ConvertError(
                f"an added token of the tokenizer cannot be read: {brief(token)} is {brief(entry)}"
            )
        yield number, text, entry.get("special") is True
