"""Unigram vocabularies of text encoders (XLM-RoBERTa), from tokenizer.json or from the file of
SentencePiece, whose ids fairseq moved."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConvertError
from ..config import F32_MAX
from ..files.jsons import brief
from .pieces import prepends_space, steps
from .sentencepiece import Piece, PieceType, read_sentencepiece
from .tokens import Tokens, added_tokens

FILE = "sentencepiece.bpe.model"
_KNOWN = ("Precompiled", "Replace", "Sequence", "Metaspace", "WhitespaceSplit")
_PARTS = ("normalizer", "pre_tokenizer")
_MERGED_SPACES = {"Regex": " {2,}"}


@dataclass(frozen=True)
class Unigrams:
    """The tokens, and how a text is changed before they are looked for."""

    tokens: Tokens
    space_prefix: bool
    merges_spaces: bool
    charsmap: bytes


def read_unigram(
    folder: Path, saved: Mapping[str, Any], settings: Mapping[str, Any], n_vocab: int | None
) -> Unigrams:
    """The vocabulary. saved: tokenizer.json, empty where `FILE` has it; settings:
    tokenizer_config.json. n_vocab: config.json's.

    `ConvertError` for a text that is changed in ways that GGUF files cannot say.
    """
    made = _of_library(saved, n_vocab) if saved else _of_pieces(folder, n_vocab)
    tokens = made.tokens
    for token, text, special in added_tokens(saved, settings, {}):
        if token < len(tokens.texts) and tokens.types[token] is not PieceType.UNKNOWN:
            kind = PieceType.CONTROL if special else PieceType.USER_DEFINED
            score = 0.0 if tokens.types[token] is PieceType.UNUSED else tokens.scores[token]
            tokens.set(token, text, score, kind)
    return made


def _of_library(saved: Mapping[str, Any], n_vocab: int | None) -> Unigrams:
    model = saved["model"]
    vocab, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(vocab, list) or not vocab or not all(map(_is_piece, vocab)):
        raise ConvertError("tokenizer.json: the vocabulary is no list of texts and scores")
    if model.get("byte_fallback") is True:
        raise ConvertError("tokenizer.json: byte_fallback is true, which readers do not do")
    tokens = Tokens.unused(max(n_vocab or 0, len(vocab)))
    for token, (text, score) in enumerate(vocab):
        kind = PieceType.UNKNOWN if token == unknown else PieceType.NORMAL
        tokens.set(token, text, float(score), kind)
    if PieceType.UNKNOWN not in tokens.types:
        raise ConvertError(f"tokenizer.json: unk_id is {brief(unknown)}, expected a token's")
    found = {str(step.get("type")): step for key in _PARTS for step in steps(saved, key) if step}
    for name, step in found.items():
        merges = step.get("pattern") == _MERGED_SPACES and step.get("content") == " "
        if name not in _KNOWN or (name == "Replace" and not merges):
            raise ConvertError(
                f"tokenizer.json: {brief(dict(step))} changes texts, which GGUF files cannot say"
            )
    charsmap = found.get("Precompiled", {}).get("precompiled_charsmap") or ""
    try:
        raw = b64decode(charsmap, validate=True)
    except (TypeError, ValueError):
        raise ConvertError("tokenizer.json: precompiled_charsmap is not base64") from None
    return Unigrams(
        tokens, prepends_space(saved), not {"Replace", "WhitespaceSplit"}.isdisjoint(found), raw
    )


def _is_piece(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], (int, float))
        and not isinstance(entry[1], bool)
        and abs(entry[1]) <= F32_MAX
    )


def _of_pieces(folder: Path, n_vocab: int | None) -> Unigrams:
    """fairseq's ids: four tokens of its own, then the pieces behind SentencePiece's first three."""
    model = read_sentencepiece(folder / FILE, "unigram")
    first = [Piece(text, 0.0, PieceType.CONTROL) for text in ("<s>", "<pad>", "</s>")]
    pieces = [*first, Piece("<unk>", 0.0, PieceType.UNKNOWN), *model.pieces[3:]]
    tokens = Tokens.unused(max(n_vocab or 0, len(pieces)))
    for token, piece in enumerate(pieces):
        tokens.set(token, piece.text, piece.score, piece.type)
    return Unigrams(tokens, model.space_prefix, model.merges_spaces, model.charsmap)


def is_unigram(folder: Path, saved: Mapping[str, Any]) -> bool:
    """Whether a folder has such a vocabulary. saved: tokenizer.json, empty where there is none."""
    model = saved.get("model")
    if isinstance(model, Mapping):
        return model.get("type") == "Unigram"
    return not saved and (folder / FILE).is_file()
