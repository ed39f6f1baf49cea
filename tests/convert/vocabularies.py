"""Tokenizer files for tests, written by hand: they need neither transformers nor sentencepiece."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    charsmap: bytes = b"",
    name: str = "tokenizer.model",
) -> None:
    """tokenizer.model, the protocol buffer of sentencepiece_model.proto."""
    data = b""
    for text, score, kind in small_pieces() if pieces is None else pieces:
        body = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        data += _bytes(1, body + _number(3, kind))
    byte_fallback = 35
    data += _bytes(2, _number(3, model_type) + _number(byte_fallback, 1))
    data += _bytes(3, (_bytes(2, charsmap) if charsmap else b"") + _number(3, dummy_prefix))
    (folder / name).write_bytes(data)


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


# How texts are cut, as the tokenizer.json of each family says.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"llama-bpe": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", ""), "gpt-2": None}


def tokenizer_json(
    metadata: dict[str, Any], pattern: str | None, bos: str | None
) -> dict[str, Any]:
    """tokenizer.json of a GGUF file's byte-level vocabulary; `bos` is put before texts."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    added = [i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    pre = [byte_level | {"use_regex": True}]
    if pattern is not None:
        pre = [split, byte_level | {"use_regex": False}]
    saved: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [_added(i, tokens[i], types[i] == CONTROL) for i in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": bos is not None,
            "vocab": {text: i for i, text in enumerate(tokens) if types[i] == NORMAL},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }
    if bos is not None:
        special = {"SpecialToken": {"id": bos, "type_id": 0}}
        saved["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {bos: {"id": bos, "ids": [tokens.index(bos)], "tokens": [bos]}},
        }
    return saved


def sentencepiece_json(pieces: Sequence[tuple[str, float, int]]) -> dict[str, Any]:
    """tokenizer.json as transformers makes it of a SentencePiece vocabulary of Llama's kind."""
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    scores = {text: score for text, score, kind in pieces if kind == NORMAL}
    merges = [
        (score, left, text[len(left) :])
        for text, score in scores.items()
        for left in (text[:at] for at in range(1, len(text)))
        if left in scores and text[len(left) :] in scores
    ]
    merges.sort(key=lambda merge: (-merge[0], vocab[merge[1]], vocab[merge[2]]))
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        "version": "1.0",
        "added_tokens": [
            _added(i, text, True) for i, (text, _, kind) in enumerate(pieces)
            if kind not in (NORMAL, BYTE)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, space],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": "<unk>",
            "vocab": vocab,
            "merges": [[left, right] for _, left, right in merges],
        },
    }  # fmt: skip


def _added(token: int, text: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": special, **flags}


def small_json(**changes: Any) -> dict[str, Any]:
    """tokenizer.json of a byte-level vocabulary that no model has."""
    tokens = [chr(33 + i) for i in range(90)] + ["ab", "<|end|>"]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * 91 + [CONTROL],
        "tokenizer.ggml.merges": ["a b"],
    }
    saved = tokenizer_json(metadata, None, None)
    saved["model"] |= changes
    return saved
