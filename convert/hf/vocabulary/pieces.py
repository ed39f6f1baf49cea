"""SentencePiece vocabularies: from tokenizer.model, or from what tokenizer.json keeps of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..files.jsons import brief, optional_json
from .sentencepiece import PieceType, read_sentencepiece
from .tokens import ADDED_SCORE, Tokens, added_tokens

_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


def read_pieces(
    folder: Path,
    saved: Mapping[str, Any],
    settings: Mapping[str, Any],
    n_vocab: int | None,
    architecture: HFArchitecture,
) -> tuple[Tokens, bool]:
    """The tokens, and whether a text is preceded by a space.

    saved: tokenizer.json; settings: tokenizer_config.json; both may be empty. n_vocab: the number
    of ids (default: of pieces).
    """
    if (folder / "tokenizer.model").is_file():
        model = read_sentencepiece(folder / "tokenizer.model", "BPE")
        pieces, space_prefix = model.pieces, model.space_prefix
        tokens = Tokens.unused(n_vocab or len(pieces))
        for token, piece in enumerate(pieces[: len(tokens.texts)]):
            tokens.set(token, piece.text, piece.score, piece.type)
    else:
        tokens, space_prefix = _from_merges(saved, n_vocab), prepends_space(saved)
    listed = optional_json(folder / "added_tokens.json")
    for token, text, special in added_tokens(saved, settings, listed):
        if token < len(tokens.texts):  # beyond config.json's vocabulary the model has no row
            tokens.set_added(token, text, special, architecture.added_tokens_as_listed)
    return tokens, space_prefix


# Tokens around what Gemma 4 thinks and calls, which parsers of its answers have to see.
_SHOWN = {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'} | {
    "<|tool_response>",
    "<tool_response|>",
}


def as_gemma4(tokens: Tokens) -> Tokens:
    """The tokens as files with merges have them: one score for all, no unknown token."""
    types: list[PieceType] = [
        PieceType.CONTROL if t is PieceType.UNKNOWN else t for t in tokens.types
    ]
    for token, text in enumerate(tokens.texts):
        if text in _SHOWN:
            types[token] = PieceType.USER_DEFINED
    return Tokens(tokens.texts, [ADDED_SCORE] * len(types), types)


def _from_merges(saved: Mapping[str, Any], n_vocab: int | None) -> Tokens:
    """Tokens whose scores give the order of the merges: the negated rank of the token's merge.

    llama.cpp's converter gives all tokens one score here, so that texts are joined from the left.
    """
    model = saved["model"]
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not vocab or not isinstance(merges, list):
        raise ConvertError("tokenizer.json: the vocabulary or its merges are missing")
    unsound = [token for token in vocab.values() if type(token) is not int or token < 0]
    if unsound:
        raise ConvertError(f"tokenizer.json: a token has the id {brief(unsound[0])}")
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        ranks.setdefault(left + right, rank)
    tokens = Tokens.unused(n_vocab or max(vocab.values()) + 1)
    for text, token in vocab.items():
        kind = PieceType.BYTE if _BYTE.fullmatch(text) else PieceType.NORMAL
        if text == model.get("unk_token"):
            kind = PieceType.UNKNOWN
        tokens.set(token, text, -float(ranks.get(text, len(merges))), kind)
    return tokens


def prepends_space(saved: Mapping[str, Any]) -> bool:
    """Whether the normaliser or the pre-tokenizer puts a space before a text."""
    for step in (*steps(saved, "normalizer"), *steps(saved, "pre_tokenizer")):
        if step.get("type") == "Prepend":
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def steps(saved: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A step of tokenizer.json, or a sequence of them."""
    outer = saved.get(key) or {}
    inner = outer.get(f"{key.replace('_', '')}s", []) if isinstance(outer, Mapping) else None
    steps = [outer, *inner] if isinstance(inner, list) else []
    if not steps or not all(isinstance(step, Mapping) for step in steps):
        raise ConvertError(f"tokenizer.json: {key} is {brief(outer)}, expected steps")
    return steps
