"""A model's vocabulary from its tokenizer's files: tokens, kinds, scores, the pre-tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, SpecialVocab

from ....runtime.tokenizer.pretokenizers import PRE_TOKENIZERS
from ....system.text import one_line
from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..files.jsons import MAX_VOCABULARY_BYTES, brief, optional_json, read_bytes
from .bpe import byte_level_tokens, pre_tokenizer
from .pieces import as_gemma4, read_pieces
from .tiktoken import FILE as TIKTOKEN
from .tiktoken import pre_tokenizer_of_code, read_tiktoken
from .tokens import Tokens
from .unigram import FILE, is_unigram, read_unigram
from .wordpiece import WORDPIECE_PRE, read_wordpiece

# What gguf-py's rules raise for files that are valid JSON and nothing else.
_ODD = (ValueError, TypeError, KeyError, AttributeError, IndexError)
_FILES = ("tokenizer.model", "tokenizer.json", "vocab.json", "vocab.txt", FILE, TIKTOKEN)
_MERGED_SPACES = "tokenizer.ggml.remove_extra_whitespaces"


@dataclass(frozen=True)
class Vocabulary:
    """The values of the file's `tokenizer.*` keys."""

    model: str
    """`tokenizer.ggml.model`: llama (SentencePiece), gpt2 (byte-level BPE), gemma4, bert
    (WordPiece) or t5 (unigram)."""
    pre: str | None
    """None: the model says it."""
    tokens: Tokens
    space_prefix: bool | None
    special: SpecialVocab
    by_rules: bool = False
    """Whether `pre` was recognised by its rules alone."""
    flags: Mapping[str, bool] = field(default_factory=dict)
    """Keys of their own: how a vocabulary changes a text."""
    charsmap: bytes = b""
    """How a unigram vocabulary changes characters."""

    def add(self, writer: GGUFWriter) -> None:
        """Write the keys, as llama.cpp's converter does."""
        if self.space_prefix is not None:
            writer.add_add_space_prefix(self.space_prefix)
        writer.add_tokenizer_model(self.model)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens.texts)
        if self.model not in ("gpt2", "bert"):
            writer.add_token_scores(self.tokens.scores)
        writer.add_token_types([int(kind) for kind in self.tokens.types])
        try:
            self.special.add_to_gguf(writer, quiet=True)
        except _ODD as error:
            raise ConvertError(f"tokenizer_config.json: {one_line(repr(error), 120)}") from error
        if self.model == "gemma4":
            writer.add_add_bos_token(True)
        for key, value in self.flags.items():
            writer.add_bool(key, value)
        if self.charsmap:
            writer.add_precompiled_charsmap(self.charsmap)


def read_vocabulary(
    folder: Path, architecture: HFArchitecture, n_vocab: int | None, pre: str | None = None
) -> Vocabulary:
    """The vocabulary of a model's folder.

    n_vocab: config.json's; ids up to it that no file names become unused tokens. pre: the name of
    the pre-tokenizer of a byte-level vocabulary (default: by the ids that it gives, or its rules).

    Raises `ConvertError` for a kind of tokenizer that GGUF files or kvarn do not have, and for a
    pre-tokenizer that neither llama.cpp's table of hashes nor `rules` knows.
    """
    if not any((folder / name).is_file() for name in _FILES):
        tekken = "but Mistral's tekken.json" if (folder / "tekken.json").is_file() else "at all"
        raise ConvertError(
            f"{folder} has no tokenizer {tekken}: expected one of {', '.join(_FILES)}"
        )
    if architecture.vocabulary == "bert":
        if pre is not None:
            raise ConvertError("--pre has no effect on the vocabulary of a text encoder: omit it")
        return _of_encoder(folder, n_vocab)
    saved = _saved_tokenizer(folder)
    settings = optional_json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.model").is_file() or _is_sentencepiece(saved):
        if pre is not None:
            raise ConvertError("--pre has no effect on a SentencePiece vocabulary: omit it")
        tokens, has_prefix = read_pieces(folder, saved, settings, n_vocab, architecture)
        if architecture.vocabulary == "gemma4" and saved:
            tokens = as_gemma4(tokens)
            return Vocabulary("gemma4", None, tokens, False, _special(folder, None))
        prefix = _space_prefix(architecture, settings, has_prefix)
        return Vocabulary("llama", "default", tokens, prefix, _special(folder, len(tokens.texts)))
    if pre is not None and pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ConvertError(
            f"--pre {pre:.40}: kvarn knows no pre-tokenizer of this name: expected one of {known}"
        )
    if not saved and (folder / TIKTOKEN).is_file():
        tokens, merges = read_tiktoken(folder, settings, n_vocab)
        special = _special(folder, len(tokens.texts))
        special.merges = merges
        return Vocabulary("gpt2", pre or pre_tokenizer_of_code(folder), tokens, None, special)
    tokenizer, tokens = byte_level_tokens(folder, saved, settings, n_vocab)
    hashed, name = True, pre
    if name is None:
        ignores = bool(saved) and saved["model"].get("ignore_merges") is True
        name, hashed = pre_tokenizer(tokenizer, ignores)
    add_prefix = settings.get("add_prefix_space")
    prefix = add_prefix if architecture.permuted and isinstance(add_prefix, bool) else None
    special = _special(folder, None)
    if not special.merges and (joined := tokens.first_of_several_bytes()) is not None:
        raise ConvertError(
            f"the tokenizer has no merges, and nothing else makes its token {brief(joined)}: "
            "expected merges in tokenizer.json or merges.txt"
        )
    return Vocabulary("gpt2", name, tokens, prefix, special, not hashed)


def _of_encoder(folder: Path, n_vocab: int | None) -> Vocabulary:
    saved = optional_json(folder / "tokenizer.json", MAX_VOCABULARY_BYTES)
    if is_unigram(folder, saved):
        settings = optional_json(folder / "tokenizer_config.json")
        read = read_unigram(folder, saved, settings, n_vocab)
        special = _special(folder, len(read.tokens.texts))
        if not saved:  # nothing else says what stands around a text
            special.add_special_token = dict.fromkeys(("bos", "eos", "sep"), True)
        made = Vocabulary("t5", "default", read.tokens, read.space_prefix, special)
        flags = {_MERGED_SPACES: read.merges_spaces}
        made = replace(made, flags=flags, charsmap=read.charsmap)
    else:
        tokens, flags = read_wordpiece(folder, n_vocab)
        special = _special(folder, len(tokens.texts))
        made = Vocabulary("bert", WORDPIECE_PRE, tokens, None, special, flags=flags)
    first = special.special_token_ids.pop("cls", None)  # GGUF's name for it is BOS
    if first is not None:
        special.special_token_ids.setdefault("bos", first)
    return made


def _saved_tokenizer(folder: Path) -> dict[str, Any]:
    """tokenizer.json, checked as far as everything below needs; empty where there is none."""
    saved = optional_json(folder / "tokenizer.json", MAX_VOCABULARY_BYTES)
    if not saved:
        return saved
    model = saved.get("model")
    kind = model.get("type", "BPE") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or kind != "BPE":
        raise ConvertError(
            f"tokenizer.json: the vocabulary is of the kind {brief(kind)}, expected BPE"
        )
    _check_merges(model.get("merges"))
    return saved


def _check_merges(merges: object) -> None:
    """`ConvertError` unless all are "left right", or all [left, right]."""
    if not isinstance(merges, list):
        raise ConvertError(f"tokenizer.json: merges are {brief(merges)}, expected a list")
    form = type(merges[0]) if merges else str
    for merge in merges:
        if form is str:
            parts = merge.split(" ") if isinstance(merge, str) else ()
        else:
            parts = merge if isinstance(merge, list) else ()
        if len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
            raise ConvertError(
                f"tokenizer.json: {brief(merge)} is among the merges, expected two texts, as in "
                + ("'th e'" if form is str else "['th', 'e']")
            )


def _is_sentencepiece(saved: Mapping[str, Any]) -> bool:
    """Whether the vocabulary was SentencePiece's: unknown characters are spelt in bytes."""
    return bool(saved) and saved["model"].get("byte_fallback") is True


def _space_prefix(
    architecture: HFArchitecture, settings: Mapping[str, Any], has_prefix: bool
) -> bool | None:
    """The flag of the space before a text; None: no flag, which means that there is one."""
    if architecture.space_prefix is not None:
        return architecture.space_prefix
    configured = settings.get("add_prefix_space")
    if isinstance(configured, bool):
        return configured
    return None if has_prefix else False


def _special(folder: Path, n_vocab: int | None) -> SpecialVocab:
    """BOS, EOS and the like, merges, chat template, by gguf-py's rules, which are llama.cpp's."""
    for name in ("chat_template.json", "chat_template.jinja", "additional_chat_templates/*.jinja"):
        for path in folder.glob(name):
            if path.is_file():
                read_bytes(path)  # gguf-py reads them whatever their size
    if (folder / "chat_template.json").is_file():
        optional_json(folder / "chat_template.json")
    try:
        return SpecialVocab(folder, load_merges=n_vocab is None, n_vocab=n_vocab)
    except _ODD as error:
        raise ConvertError(
            f"the tokenizer's files do not fit together: {one_line(repr(error), 120)}"
        ) from error
