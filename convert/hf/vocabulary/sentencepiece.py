"""Reading tokenizer.model, the file of a SentencePiece vocabulary.

A protocol buffer, `ModelProto` of sentencepiece_model.proto; of its fields these are read:

    1 piece (repeated)      1 text · 2 score, f32 · 3 type, see `PieceType`
    2 trainer_spec          3 model_type: 1 unigram (the default), 2 BPE, 3 words, 4 characters
    3 normalizer_spec       2 precompiled_charsmap · 3 add_dummy_prefix (default true) ·
                            4 remove_extra_whitespaces (default true)

A message is fields, one after the other: a varint of (number << 3 | kind), then by kind 0 a varint,
1 eight bytes, 2 a varint of a length and as many bytes, 5 four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ....models.config.bounds import MAX_VOCAB
from ...errors import ConvertError
from ..files.jsons import MAX_VOCABULARY_BYTES, read_bytes

_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "character"}


class PieceType(IntEnum):
    """The kind of a piece; `tokenizer.ggml.token_type` has the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """One token."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class SentencePieceModel:
    """What the file says."""

    pieces: list[Piece]
    """By id."""
    space_prefix: bool
    """Whether a space stands before the first word."""
    merges_spaces: bool
    """Whether of several spaces one is left, and none at the ends."""
    charsmap: bytes
    """How characters are changed before."""


def read_sentencepiece(path: Path, kind: str) -> SentencePieceModel:
    """The model of a file. `ConvertError` where it is damaged or not of this kind: "BPE" or
    "unigram"."""
    try:
        return _read(path.name, read_bytes(path, MAX_VOCABULARY_BYTES), kind)
    except (IndexError, ValueError, struct.error):
        raise ConvertError(f"{path.name}: not a SentencePiece model, or damaged") from None


def _read(name: str, data: bytes, kind: str) -> SentencePieceModel:
    pieces, model_type, normalizer = [], 1, b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
            if len(pieces) > MAX_VOCAB:
                raise ConvertError(f"{name} has over {MAX_VOCAB:,} pieces")
        elif number == 2 and isinstance(value, bytes):
            model_type = _integer(value, 3, model_type)
        elif number == 3 and isinstance(value, bytes):
            normalizer = value
    if not pieces:
        raise ValueError("no pieces")
    if (found := _MODEL_TYPES.get(model_type, str(model_type))) != kind:
        raise ConvertError(f"{name} is a {found} vocabulary: expected {kind}")
    charsmaps = [value for number, value in _fields(normalizer) if number == 2]
    charsmap = charsmaps[-1] if charsmaps and isinstance(charsmaps[-1], bytes) else b""
    return SentencePieceModel(
        pieces, bool(_integer(normalizer, 3, 1)), bool(_integer(normalizer, 4, 1)), charsmap
    )


def _piece(data: bytes) -> Piece:
    text, score, kind = b"", 0.0, PieceType.NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = PieceType(value)
    return Piece(text.decode("utf-8"), score, kind)


def _integer(data: bytes, field: int, default: int) -> int:
    """The value of a field, the last one where there are several."""
    values = [value for number, value in _fields(data) if number == field]
    return values[-1] if values and isinstance(values[-1], int) else default


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field; ValueError or IndexError where the message is cut short."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or at + length > len(data):
            raise ValueError("a field does not fit")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number has no end")
