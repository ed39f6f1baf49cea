"""Byte-level BPE vocabularies, read by the library that made them (tokenizers)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConvertError
from ..folder import optional_json
from .pretokenizers import CHECK_TEXT, pre_tokenizer_of
from .sentencepiece import PieceType
from .tokens import ADDED_SCORE, Tokens, added_tokens, looks_special

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How a text is cut by the classes that keep vocab.json and merges.txt; None: as GPT-2.
_PATTERNS: dict[str, str | None] = {
    "GPT2Tokenizer": None,
    "Qwen2Tokenizer": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def byte_level_tokens(
    folder: Path,
    saved: Mapping[str, Any],
    settings: Mapping[str, Any],
    n_vocab: int | None,
) -> tuple[Tokenizer, Tokens]:
    """The tokenizer, and its tokens as the file has them: `n_vocab` ids, or as there are.

    saved: tokenizer.json, empty where there are vocab.json and merges.txt; settings:
    tokenizer_config.json. `ConvertError` for files that do not make a tokenizer.
    """
    tokenizer = _load(folder, settings) if saved else _assemble(folder, settings)
    for token, text, _ in _listed(settings):
        if tokenizer.token_to_id(text) != token:
            raise ConvertError(
                f"tokenizer_config.json gives {text!r:.40} the id {token}, the tokenizer "
                f"{tokenizer.token_to_id(text)}"
            )
    vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    special = _special_texts(settings) | {t.content for t in added.values() if t.special}
    names = {t.content for t in added.values()} | (special & vocab.keys())
    tokens = Tokens.unused(n_vocab or max(vocab.values()) + 1)
    for text, token in vocab.items():
        if text not in names:
            tokens.set(token, text, 0.0, PieceType.NORMAL)
            continue
        written = text
        if token in added and not added[token].normalized:
            written = tokenizer.decode(
                tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False
            )
        if text in special or looks_special(written):
            tokens.set(token, written, ADDED_SCORE, PieceType.CONTROL)
        else:
            tokens.set(token, written.replace("▁", " "), ADDED_SCORE, PieceType.USER_DEFINED)
    return tokenizer, tokens


def pre_tokenizer(tokenizer: Tokenizer) -> str:
    """The pre-tokenizer's name, by llama.cpp's hashes; `ConvertError` for one that has none.

    Hashes were taken with the special tokens that transformers adds, which differ by its version:
    the bare ids count as well.
    """
    for special in (True, False):
        name = pre_tokenizer_of(tokenizer.encode(CHECK_TEXT, add_special_tokens=special).ids)
        if name is not None:
            return name
    raise ConvertError(
        "the pre-tokenizer is unknown: the vocabulary gives ids that llama.cpp's table of hashes "
        "does not have; if you know its name, say it with --pre NAME"
    )


def _load(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower
        raise ConvertError(f"tokenizer.json: {error}") from error
    missing = [entry for entry in _listed(settings) if tokenizer.token_to_id(entry[1]) is None]
    tokenizer.add_tokens(
        [AddedToken(text, special=special, normalized=False) for _, text, special in missing]
    )
    return tokenizer


def _assemble(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """A tokenizer of vocab.json and merges.txt, by its class's rules."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    kind = settings.get("tokenizer_class", "GPT2Tokenizer")
    if kind.removesuffix("Fast") not in _PATTERNS or not (folder / "merges.txt").is_file():
        raise ConvertError(
            f"{folder} has vocab.json and no tokenizer.json, and its tokenizer is a {kind!r:.40}: "
            f"expected {' or '.join(_PATTERNS)} with merges.txt"
        )
    try:
        model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # the library raises nothing narrower
        raise ConvertError(f"vocab.json and merges.txt: {error}") from error
    tokenizer = Tokenizer(model)
    pattern = _PATTERNS[kind.removesuffix("Fast")]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    listed = dict.fromkeys(optional_json(folder / "added_tokens.json"), False)
    listed |= {text: special for _, text, special in _listed(settings)}
    listed |= dict.fromkeys(sorted(_special_texts(settings)), True)
    tokenizer.add_tokens(
        [AddedToken(text, special=special, normalized=False) for text, special in listed.items()]
    )
    return tokenizer


def _listed(settings: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """The added tokens of tokenizer_config.json by id."""
    return sorted(added_tokens({}, settings, {}))


def _special_texts(settings: Mapping[str, Any]) -> set[str]:
    """Tokens that tokenizer_config.json gives a role, and those that it lists as special."""
    entries = [settings.get(f"{role}_token") for role in _ROLES]
    entries += settings.get("additional_special_tokens") or []
    entries += [text for _, text, special in _listed(settings) if special]
    texts = (entry.get("content") if isinstance(entry, Mapping) else entry for entry in entries)
    return {text for text in texts if isinstance(text, str)}
