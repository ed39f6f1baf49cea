"""WordPiece vocabularies (BERT), from tokenizer.json or vocab.txt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConvertError
from ..files.jsons import MAX_VOCABULARY_BYTES, brief, optional_json, read_bytes
from .sentencepiece import PieceType
from .tokens import Tokens, added_tokens

WORDPIECE_PRE = "bert-bge"
"""`tokenizer.ggml.pre`, by which readers tell BPE vocabularies apart; of WordPiece there is one."""
_CONTINUES = "##"
_WORD = "▁"
_CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
_STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"


def read_wordpiece(folder: Path, n_vocab: int | None) -> tuple[Tokens, dict[str, bool]]:
    """The tokens in GGUF's spelling, which marks the beginnings of words, not what continues them;
    and the keys of the file that say whether case and accents are kept.

    n_vocab: config.json's. `ConvertError` for another kind of vocabulary, and for a text that is
    changed in ways that GGUF files cannot say.
    """
    saved = optional_json(folder / "tokenizer.json", MAX_VOCABULARY_BYTES)
    settings = optional_json(folder / "tokenizer_config.json")
    vocab = _vocab(saved) if saved else _lines(folder / "vocab.txt")
    added = {token: (text, special) for token, text, special in added_tokens(saved, settings, {})}
    added |= {vocab[text]: (text, True) for text in _CONTROL if text in vocab}
    highest = max([*vocab.values(), *added], default=-1)
    tokens = Tokens.unused(n_vocab or highest + 1)
    for text, token in vocab.items():
        continues = text.startswith(_CONTINUES) and text != _CONTINUES
        spelt = text.removeprefix(_CONTINUES) if continues else _WORD + text
        tokens.set(token, spelt, 0.0, PieceType.NORMAL)
    for token, (text, special) in added.items():
        kind = PieceType.CONTROL if special else PieceType.USER_DEFINED
        tokens.set(token, text if special else _WORD + text, 0.0, kind)
    return tokens, _flags(saved, settings)


def _vocab(saved: Mapping[str, Any]) -> dict[str, int]:
    model = saved.get("model")
    kind = model.get("type") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or kind != "WordPiece":
        raise ConvertError(
            f"tokenizer.json: the vocabulary is of the kind {brief(kind)}, expected WordPiece"
        )
    if (prefix := model.get("continuing_subword_prefix", _CONTINUES)) != _CONTINUES:
        raise ConvertError(
            f"tokenizer.json: {brief(prefix)} marks what continues a word, expected {_CONTINUES}"
        )
    vocab = model.get("vocab")
    if not isinstance(vocab, Mapping) or any(type(token) is not int for token in vocab.values()):
        raise ConvertError(f"tokenizer.json: the vocabulary is {brief(vocab)}, expected texts")
    return dict(vocab)


def _lines(path: Path) -> dict[str, int]:
    if not path.is_file():
        raise ConvertError(f"{path.parent} has no tokenizer.json and no vocab.txt")
    try:
        lines = read_bytes(path, MAX_VOCABULARY_BYTES).decode().split("\n")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path.name} is no UTF-8 text") from error
    if not lines[-1]:
        lines.pop()
    return {text.rstrip("\r"): token for token, text in enumerate(lines)}


def _flags(saved: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, bool]:
    """What differs from readers' defaults: small letters without accents."""
    normalizer = saved.get("normalizer") or {}
    if not isinstance(normalizer, Mapping) or normalizer.get("type") not in (
        None,
        "BertNormalizer",
    ):
        raise ConvertError(
            f"tokenizer.json: the normalizer is {brief(normalizer)}, expected a BertNormalizer"
        )
    for key in ("clean_text", "handle_chinese_chars"):
        if normalizer.get(key, True) is not True:
            raise ConvertError(f"tokenizer.json: {key} is false, which GGUF files cannot say")
    small = normalizer.get("lowercase", settings.get("do_lower_case", True)) is not False
    strips = normalizer.get("strip_accents", settings.get("strip_accents"))
    strips = small if strips is None else strips is True
    flags = {} if small else {_LOWERCASE: False}
    return flags if strips == small else {**flags, _STRIP_ACCENTS: strips}
