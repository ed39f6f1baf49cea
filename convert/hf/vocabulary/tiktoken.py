"""Vocabularies of tiktoken, as Kimi and Moonlight keep them: tokens of bytes by rank.

    tiktoken.model         a line for each token: its bytes in base64, its rank, which is its id
    tokenization_*.py      how texts are cut: `pat_str`, which is read and never run
    tokenizer_config.json  the texts of control tokens, whose ids follow the ranks

A text's tokens are merged by the rank of what a merge gives, so a list of merges says the same:
each token's last merge, in the order of ranks. The rules are llama.cpp's (`conversion/deepseek.py`,
as packaged in llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import ast
import base64
import binascii
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from ....runtime.tokenizer.bpe import BYTE_TO_CHARACTER
from ...errors import ConvertError
from ..files.jsons import brief, read_bytes
from .sentencepiece import PieceType
from .tokens import Tokens, added_tokens

FILE = "tiktoken.model"
RESERVED = 258
"""Ids after the ranks, of control tokens: what the code of these models has."""
_MAX_BYTES = 8 << 20  # the largest published one has 2.8 MB
_MAX_TOKEN = 512  # bytes of a token
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_WORD = r"[^\r\n\p{L}\p{N}]?%s%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "|".join(
        (
            r"[\p{Han}]+",
            _WORD % (_UPPER + "*", _LOWER + "+"),
            _WORD % (_UPPER + "+", _LOWER + "*"),
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ): "kimi-k2"
}
"""The pre-tokenizer of each known `pat_str`."""


def read_tiktoken(
    folder: Path, settings: Mapping[str, Any], n_vocab: int | None
) -> tuple[Tokens, list[str]]:
    """The tokens as a byte-level vocabulary has them, and its merges.

    settings: tokenizer_config.json. `ConvertError` for files that do not make a vocabulary.
    """
    ranks = _read_ranks(folder / FILE)
    first = len(ranks)
    tokens = Tokens.unused(n_vocab or first + RESERVED)
    for token, rank in ranks.items():
        tokens.set(rank, _text(token), 0.0, PieceType.NORMAL)
    for i in range(first, min(first + RESERVED, len(tokens.texts))):
        tokens.set(i, f"<|reserved_token_{i}|>", 0.0, PieceType.CONTROL)
    for i, text, _ in added_tokens({}, settings, {}):
        if i < first:
            raise ConvertError(
                f"tokenizer_config.json gives {brief(text)} the id {i}, which {FILE} has for "
                "another token"
            )
        tokens.set(i, text, 0.0, PieceType.CONTROL)
    return tokens, list(_merges(ranks))


def pre_tokenizer_of_code(folder: Path) -> str:
    """The name for the `pat_str` in the code of the tokenizer.

    `ConvertError` where there is none, or one that no pre-tokenizer of kvarn's has.
    """
    sources = sorted(folder.glob("tokenization_*.py"))
    for path in sources:
        for pattern in _patterns(path):
            if pattern in PATTERNS:
                return PATTERNS[pattern]
    found = "no tokenization_*.py" if not sources else f"no known pat_str in {sources[0].name}"
    raise ConvertError(
        f"{FILE} does not say how texts are cut, and there is {found} beside it; if you know the "
        "pre-tokenizer's name, say it with --pre NAME (`kvarn convert --help` lists the names)"
    )


def _read_ranks(path: Path) -> dict[bytes, int]:
    """The tokens by rank; `ConvertError` unless each rank from 0 on has one token."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_bytes(path, _MAX_BYTES).splitlines(), 1):
        if not line:
            continue
        parts = line.split()
        try:
            token, rank = base64.b64decode(parts[0], validate=True), int(parts[1])
        except (binascii.Error, ValueError, IndexError):
            raise ConvertError(
                f"{path.name}: line {number} is {brief(line.decode('latin-1'))}, expected a token "
                "in base64 and its rank"
            ) from None
        if len(parts) > 2 or not 0 < len(token) <= _MAX_TOKEN or token in ranks:
            raise ConvertError(
                f"{path.name}: line {number} has {len(parts)} fields and a token of {len(token)} "
                f"bytes, expected 2, and 1 to {_MAX_TOKEN} that no other line has"
            )
        ranks[token] = rank
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ConvertError(f"{path.name}: {len(ranks)} tokens do not have the ranks from 0 on")
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise ConvertError(f"{path.name}: no token is the byte {missing}, expected all 256")
    return dict(sorted(ranks.items(), key=lambda item: item[1]))


def _merges(ranks: Mapping[bytes, int]) -> Iterator[str]:
    """Each token's last merge "left right", best first; a token that no merges give has none."""
    for token, rank in ranks.items():
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            of_pairs = (ranks.get(a + b, rank) for a, b in pairwise(parts))
            best, i = min((of_pair, i) for i, of_pair in enumerate(of_pairs))
            if best >= rank:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            yield " ".join(map(_text, parts))


def _text(token: bytes) -> str:
    """A token's bytes as the characters that stand for them."""
    return "".join(BYTE_TO_CHARACTER[byte] for byte in token)


def _patterns(path: Path) -> Iterator[str]:
    """What the code assigns to `pat_str`: a text, or texts that are joined."""
    try:
        module = ast.parse(read_bytes(path).decode("utf-8"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConvertError(f"{path.name}: not valid Python") from None
    for node in ast.walk(module):
        if not isinstance(node, ast.Assign) or not any(
            isinstance(target, ast.Name) and target.id == "pat_str" for target in node.targets
        ):
            continue
        value, texts = node.value, [node.value]
        if isinstance(value, ast.Call) and len(value.args) == 1:
            texts = getattr(value.args[0], "elts", [])
        parts = [text.value for text in texts if isinstance(text, ast.Constant)]
        if len(parts) == len(texts) and all(isinstance(part, str) for part in parts):
            yield "|".join(map(str, parts))
