"""Tokenizer files for tests, written by hand: they need neither transformers nor sentencepiece."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WORDS = ["▁the", "▁mill", "▁and", "er", "▁w", "he", "▁t", "▁m", "il", "in", "ill"]


def small_pieces(n_vocab: int = 300) -> list[tuple[str, float, int]]:
    """A SentencePiece vocabulary: roles, bytes, a few words with their parts, letters."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    letters = "▁etaoinshrdlucmwfgypbvk,.'T"
    texts = [*WORDS, *letters][: n_vocab - len(pieces)]
    pieces += [(text, -float(i), NORMAL) for i, text in enumerate(texts)]
    return pieces


def save_sentencepiece(
    folder: Path,
    pieces: Sequence[tuple[str, float, int]] | None = None,
    model_type: int = 2,
    dummy_prefix: bool = True,
) -> None:
    """tokenizer.model, the protocol buffer of sentencepiece_model.proto."""
    data = b""
    for text, score, kind in small_pieces() if pieces is None else pieces:
        body = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        data += _bytes(1, body + _number(3, kind))
    byte_fallback = 35
    data += _bytes(2, _number(3, model_type) + _number(byte_fallback, 1))
    data += _bytes(3, _number(3, dummy_prefix))
    (folder / "tokenizer.model").write_bytes(data)


def save_settings(folder: Path, **settings: object) -> None:
    """tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
