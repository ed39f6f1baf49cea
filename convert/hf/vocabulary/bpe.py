"""Byte-level BPE vocabularies, read by the library that made them (tokenizers)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConvertError
from ..files.jsons import MAX_VOCABULARY_BYTES, brief, optional_json, read_bytes
from .library import LibraryTokenizer, read
from .pretokenizers import pre_tokenizer_of
from .rules import name_of
from .sentencepiece import PieceType
from .tokens import Tokens, added_tokens

# How the classes that keep vocab.json and merges.txt cut a text; None: as GPT-2.
_PATTERNS: dict[str, str | None] = {
    "GPT2Tokenizer": None,
    "Qwen2Tokenizer": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def byte_level_tokens(
    folder: Path, saved: Mapping[str, Any], settings: Mapping[str, Any], n_vocab: int | None
) -> tuple[LibraryTokenizer, Tokens]:
    """The tokenizer, and its tokens as the file has them: `n_vocab` ids, or as there are.

    saved: tokenizer.json, empty where there are vocab.json and merges.txt; settings:
    tokenizer_config.json. `ConvertError` for files that do not make a tokenizer.
    """
    tokenizer = _load(saved, settings) if saved else _assemble(folder, settings)
    vocab, added = tokenizer.vocab, tokenizer.added
    for token, text, _ in _listed(settings):
        if vocab.get(text) != token:
            raise ConvertError(
                f"tokenizer_config.json gives {brief(text)} the id {token}, the tokenizer "
                f"{vocab.get(text)}"
            )
    special = _special_texts(settings) | {entry.text for entry in added.values() if entry.special}
    names = {entry.text for entry in added.values()} | (special & vocab.keys())
    tokens = Tokens.unused(n_vocab or max(vocab.values(), default=-1) + 1)
    for text, token in vocab.items():
        if text not in names:
            tokens.set(token, text, 0.0, PieceType.NORMAL)
            continue
        written = added[token].written if token in added else text
        tokens.set_added(token, written, text in special)
    return tokenizer, tokens


def pre_tokenizer(tokenizer: LibraryTokenizer, ignore_merges: bool) -> tuple[str, bool]:
    """The pre-tokenizer's name, and whether llama.cpp's hashes know it; else its rules do.

    The hashes are of ids with the special tokens that transformers adds, which differ by its
    version. So the bare ids count as well. ignore_merges: as tokenizer.json says. `ConvertError`
    for one that neither knows.
    """
    for ids in tokenizer.check_ids:
        if (name := pre_tokenizer_of(ids)) is not None:
            return name, True
    whole, bare = tokenizer.check_ids
    adds_bos = whole[:1] != bare[:1]
    if (name := name_of(tokenizer.cuts, ignore_merges, adds_bos)) is not None:
        return name, False
    raise ConvertError(
        "the pre-tokenizer is unknown: the vocabulary gives ids that llama.cpp's table of hashes "
        "does not have, and no known one cuts texts as it does; if you know its name, say it with "
        "--pre NAME (`kvarn convert --help` lists the names)"
    )


def _load(saved: Mapping[str, Any], settings: Mapping[str, Any]) -> LibraryTokenizer:
    text = json.dumps({**saved, "padding": None, "truncation": None})
    added = [(text, special) for _, text, special in _listed(settings)]
    return read("tokenizer.json", {"saved": text}, len(text), added)


def _assemble(folder: Path, settings: Mapping[str, Any]) -> LibraryTokenizer:
    """A tokenizer of vocab.json and merges.txt, by its class's rules."""
    kind = settings.get("tokenizer_class", "GPT2Tokenizer")
    name = kind.removesuffix("Fast") if isinstance(kind, str) else ""
    files = folder / "vocab.json", folder / "merges.txt"
    if name not in _PATTERNS or not files[1].is_file():
        raise ConvertError(
            f"{folder} has vocab.json and no tokenizer.json, and its tokenizer is a {brief(kind)}: "
            f"expected {' or '.join(_PATTERNS)} with merges.txt"
        )
    n_bytes = sum(len(read_bytes(path, MAX_VOCABULARY_BYTES)) for path in files)
    listed = dict.fromkeys(optional_json(folder / "added_tokens.json"), False)
    listed |= {text: special for _, text, special in _listed(settings)}
    listed |= dict.fromkeys(sorted(_special_texts(settings)), True)
    vocab, merges = map(str, files)
    parts = {"vocab": vocab, "merges": merges, "pattern": _PATTERNS[name]}
    return read("vocab.json and merges.txt", {"assembled": parts}, n_bytes, list(listed.items()))


def _listed(settings: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """The added tokens of tokenizer_config.json by id."""
    return sorted(added_tokens({}, settings, {}))


def _special_texts(settings: Mapping[str, Any]) -> set[str]:
    """Tokens that tokenizer_config.json gives a role, and those that it lists as special."""
    entries = [settings.get(f"{role}_token") for role in _ROLES]
    more = settings.get("additional_special_tokens")
    entries += more if isinstance(more, list) else []
    entries += [text for _, text, special in _listed(settings) if special]
    texts = (entry.get("content") if isinstance(entry, Mapping) else entry for entry in entries)
    return {text for text in texts if isinstance(text, str)}
