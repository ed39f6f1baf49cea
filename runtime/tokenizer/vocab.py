"""The vocabulary of a GGUF file: tokens, kinds, scores and flags, checked when they are read.

Keys are `tokenizer.ggml.*` of the GGUF specification; defaults are llama.cpp's.
"""

from collections.abc import Mapping
from enum import IntFlag
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.config.bounds import MAX_VOCAB
from ...system.errors import KvarnError
from ...system.text import brief
from .pretokenizers import PRE_TOKENIZERS, PreTokenizer

_PREFIX = "tokenizer.ggml."


class TokenizerError(KvarnError):
    """A file's vocabulary cannot be used, or ids or options do not fit it."""


class Attr(IntFlag):
    """The kind of a token; several may apply."""

    UNDEFINED = 0
    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    LSTRIP = 64  # absorbs white space before it
    RSTRIP = 128  # absorbs white space after it


HIDDEN = Attr.CONTROL | Attr.UNKNOWN
"""Tokens that are not shown, and that `encode` finds in a text only where it is told to."""


# Values of tokenizer.ggml.token_type.
_TYPES = (
    Attr.UNDEFINED,
    Attr.NORMAL,
    Attr.UNKNOWN,
    Attr.CONTROL,
    Attr.USER_DEFINED,
    Attr.UNUSED,
    Attr.BYTE,
)
_SPECIAL = Attr.CONTROL | Attr.USER_DEFINED | Attr.UNKNOWN
_MODELS = {
    "llama": "spm",
    "gpt2": "bpe",
    "gemma4": "bpe",
    "whitespace": "bpe",
    "bert": "wordpiece",
    "t5": "unigram",
}
_REFUSED = {
    "rwkv": "an RWKV vocabulary",
    "plamo2": "a PLaMo-2 vocabulary",
    "hybriddna": "a HybriDNA vocabulary",
    "replit": "a unigram (UGM) vocabulary",
}
_ROLES = "bos eos eot eom unk sep pad mask fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep".split()
_ROLE_KEYS = {role: f"{role}_token_id" for role in _ROLES} | {
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # spelt so in the format
    "pad": "padding_token_id",
}
_OLD_ROLE_KEYS = {
    "fim_pre": "prefix_token_id",
    "fim_suf": "suffix_token_id",
    "fim_mid": "middle_token_id",
}
_DEFAULT_ROLES = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "whitespace": {"bos": 11, "eos": 11},
    "gemma4": {},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}


class Vocab:
    """Tokens of a file and the rules beside them.

    kind: "spm", "bpe", "wordpiece" or "unigram". tokens: texts as stored (bytes that are not UTF-8
    as surrogate escapes). ids: text → id. roles: "bos", "eos", ... → id, where there is one.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model = self._text("model")
        if self.model in ("", "none", "no_vocab"):
            raise TokenizerError("the file has no tokenizer (tokenizer.ggml.model): nothing to do")
        if self.model in _REFUSED:
            raise TokenizerError(
                f"tokenizer model {brief(self.model)} is {_REFUSED[self.model]}, which kvarn"
                f" cannot read; it reads {', '.join(_MODELS)}"
            )
        if self.model not in _MODELS:
            raise TokenizerError(
                f"unknown tokenizer model {brief(self.model)}: expected one of {', '.join(_MODELS)}"
            )
        self.kind = _MODELS[self.model]
        self.pre = "gemma4" if self.model == "gemma4" else self._text("pre")
        self.tokens, self.ids = self._read_tokens()
        self._types = self._array("token_type", "iu")
        self._changed: dict[int, Attr] = {}
        self.roles = self._read_roles()
        self._read_flags()

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @cached_property
    def pre_tokenizer(self) -> PreTokenizer:
        """The rules of a BPE vocabulary; TokenizerError for a name that is not in the table."""
        name = self.pre or "default"
        if name not in PRE_TOKENIZERS:
            raise TokenizerError(
                f"unknown pre-tokenizer {brief(name)} (tokenizer.ggml.pre): kvarn knows "
                f"{len(PRE_TOKENIZERS)} names; a newer kvarn may know this one"
            )
        return PRE_TOKENIZERS[name]

    @cached_property
    def scores(self) -> list[float]:
        """Score of each token, finite; 0 where the file has none."""
        scores = self._array("scores", "iuf")
        if scores is None:
            return [0.0] * self.n_vocab
        finite: list[float] = np.nan_to_num(scores).tolist()
        return finite

    @property
    def needed_scores(self) -> list[float]:
        """`scores` of a vocabulary that means nothing without them."""
        if f"{_PREFIX}scores" not in self._metadata:
            raise TokenizerError(
                "the file has a unigram vocabulary but no scores (tokenizer.ggml.scores)"
            )
        return self.scores

    @property
    def charsmap(self) -> NDArray[np.uint8]:
        """The compiled map of characters that are replaced; empty where there is none."""
        key = "precompiled_charsmap"
        values = self._numbers(key, "iu")
        if values is None:
            return np.empty(0, np.uint8)
        if values.ndim != 1 or (values.size and not -128 <= values.min() <= values.max() <= 255):
            raise TokenizerError(f"{_PREFIX}{key} is not a list of bytes: {brief(values)}")
        return values.astype(np.uint8)

    @cached_property
    def merges(self) -> list[str]:
        """BPE merges "left right", best first; none where all tokens are single bytes."""
        merges = self._strings("merges")
        if merges is None and self.pre != "kimi-k2" and not self._has_bytes_only():
            raise TokenizerError(
                "the file has a BPE vocabulary but no merges (tokenizer.ggml.merges)"
            )
        return merges or []

    def _has_bytes_only(self) -> bool:
        """Whether each normal token is one character, which stands for a byte."""
        texts = enumerate(self.tokens)
        return all(len(text) == 1 for token, text in texts if self.attr(token) is Attr.NORMAL)

    @cached_property
    def ranks(self) -> dict[str, int]:
        """Merge → rank, the first of equals. Built on first use, because that takes long."""
        merges = self.merges
        return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1)))

    def attr(self, token: int) -> Attr:
        """The kind of a token."""
        changed = self._changed.get(token)
        if changed is not None:
            return changed
        if self._types is None:
            return Attr.NORMAL
        value = int(self._types[token])
        return _TYPES[value] if 0 <= value < len(_TYPES) else Attr.UNDEFINED

    def set_attr(self, token: int, attr: Attr) -> None:
        """Replace the kind that the file gives a token."""
        self._changed[token] = attr

    def special(self) -> list[int]:
        """Ids of the control, user-defined and unknown tokens."""
        special = np.zeros(self.n_vocab, np.bool_)
        if self._types is not None:
            special |= np.isin(self._types, (2, 3, 4))
        for token, attr in self._changed.items():
            special[token] = bool(attr & _SPECIAL)
        return np.flatnonzero(special).tolist()

    def flag(self, key: str, default: bool) -> bool:
        """A boolean of the file."""
        value = self._metadata.get(_PREFIX + key, default)
        if not isinstance(value, (bool, np.bool_)):
            raise TokenizerError(f"{_PREFIX}{key} is {brief(value)}, expected true or false")
        return bool(value)

    def _read_flags(self) -> None:
        spm, wordpiece = self.kind == "spm", self.kind == "wordpiece"
        pre = self.pre_tokenizer if self.kind == "bpe" else None
        self.add_bos = self.flag(
            "add_bos_token", spm or wordpiece or (pre and pre.add_bos) or False
        )
        self.add_bos = self.add_bos or bool(pre and pre.force_bos)
        self.add_eos = self.flag("add_eos_token", self.kind == "unigram")
        self.add_sep = self.flag("add_sep_token", wordpiece)
        self.add_space_prefix = self.flag("add_space_prefix", spm)
        self.remove_extra_whitespaces = self.flag("remove_extra_whitespaces", False)
        self.lowercase = self.flag("normalizer.lowercase", self.model != "whitespace")
        self.strip_accents = self.flag("normalizer.strip_accents", self.lowercase)

    def _read_tokens(self) -> tuple[list[str], dict[str, int]]:
        tokens = self._strings("tokens")
        if not tokens:
            raise TokenizerError("the file has no tokens (tokenizer.ggml.tokens)")
        if len(tokens) > MAX_VOCAB:
            raise TokenizerError(
                f"tokenizer.ggml.tokens has {len(tokens):,} texts, expected at most {MAX_VOCAB:,}"
            )
        ids = dict(zip(tokens, range(len(tokens))))
        if "" in ids:
            tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
            ids = dict(zip(tokens, range(len(tokens))))
        if len(ids) != len(tokens):
            twice = brief(next(text for i, text in enumerate(tokens) if ids[text] != i))
            raise TokenizerError(f"tokenizer.ggml.tokens has {twice} twice: the file is damaged")
        return tokens, ids

    def _read_roles(self) -> dict[str, int]:
        roles = dict(_DEFAULT_ROLES[self.model])
        if self.kind == "bpe" and not self.pre_tokenizer.default_bos:
            del roles["bos"]
        roles = {role: token for role, token in roles.items() if token < self.n_vocab}
        for keys in (_ROLE_KEYS, _OLD_ROLE_KEYS):
            for role, key in keys.items():
                value = self._metadata.get(_PREFIX + key)
                if value is None:
                    continue
                if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                    raise TokenizerError(f"{_PREFIX}{key} is {brief(value)}, expected a token id")
                if 0 <= value < self.n_vocab:  # others mean "none", as in llama.cpp
                    roles[role] = int(value)
        return roles

    def _text(self, key: str) -> str:
        value = self._metadata.get(_PREFIX + key, "")
        if not isinstance(value, str):
            raise TokenizerError(f"{_PREFIX}{key} is {brief(value)}, expected a name")
        return value

    def _strings(self, key: str) -> list[str] | None:
        values = self._metadata.get(_PREFIX + key)
        if values is None:
            return None
        if not isinstance(values, list) or (kinds := set(map(type, values))) - {str, bytes}:
            raise TokenizerError(f"{_PREFIX}{key} is not a list of texts")
        if bytes not in kinds:
            return values
        return [v if isinstance(v, str) else v.decode("utf-8", "surrogateescape") for v in values]

    def _array(self, key: str, kinds: str) -> "NDArray[Any] | None":
        """A number for each token."""
        values = self._numbers(key, kinds)
        if values is None:
            return None
        if len(values) < self.n_vocab:
            raise TokenizerError(
                f"{_PREFIX}{key} has {len(values)} entries for {self.n_vocab} tokens: "
                "the file is damaged"
            )
        return values[: self.n_vocab]

    def _numbers(self, key: str, kinds: str) -> "NDArray[Any] | None":
        values = self._metadata.get(_PREFIX + key)
        if values is None:
            return None
        if isinstance(values, list) and all(isinstance(value, (int, float)) for value in values):
            # Texts would become one array as wide as the longest; a list of nothing has any type.
            values = np.array(values) if values else np.empty(0, np.int8)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
            raise TokenizerError(f"{_PREFIX}{key} is not a list of numbers: {brief(values)}")
        return values
