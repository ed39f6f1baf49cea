"""SentencePiece BPE as llama.cpp does it: merge by score, spell the rest in bytes.

Spaces become U+2581 "▁". By its rules the whole text is merged at once. But two neighbouring
characters that no token holds side by side are never merged: there the text can be cut without
changing the ids. The chunks between such cuts are about as long as words, and their ids are cached.
"""

import re

import numpy as np

from .merge import MergeCache, merge
from .vocab import Vocab

SPACE = "▁"
_TOKENS_AT_ONCE = 1 << 16  # of a vocabulary: bounds the copies
# Bytes of a UTF-8 character by the high four bits of the first; the others are not checked.
_LENGTHS = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)


class SentencePiece:
    """Ids of text without special tokens."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = vocab.ids
        self._scores = vocab.scores
        self._unknown = vocab.roles.get("unk")
        self._bytes = [vocab.ids.get(f"<0x{b:02X}>", vocab.ids.get(chr(b))) for b in range(256)]
        self._chunks = re.compile(_chunk_pattern(vocab.tokens)).findall
        self._cache = MergeCache(lambda chunk: self._merge(list(chunk)))

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return self._cache.encode(self._chunks(text.replace(" ", SPACE)))

    def encode_raw(self, raw: bytes) -> list[int]:
        """Ids of bytes that are not UTF-8; the first byte of each symbol gives its length."""
        raw = raw.replace(b" ", SPACE.encode())
        symbols = []
        start = 0
        while start < len(raw):
            end = start + _LENGTHS[raw[start] >> 4]
            symbols.append(raw[start:end].decode("utf-8", "surrogateescape"))
            start = end
        return self._merge(symbols)

    def _merge(self, symbols: list[str]) -> list[int]:
        ids: list[int] = []
        find = self._ids.get
        for symbol in merge(symbols, self._key):
            token = find(symbol)
            if token is not None:
                ids.append(token)
            else:
                self._spell(symbol, ids)
        return ids

    def _key(self, left: str, right: str) -> float | None:
        token = self._ids.get(left + right)
        return None if token is None else -self._scores[token]

    def _spell(self, symbol: str, ids: list[int]) -> None:
        """Append the tokens of a symbol's bytes, one unknown token for each run without tokens."""
        for byte in symbol.encode("utf-8", "surrogateescape"):
            token = self._bytes[byte]
            if token is not None:
                ids.append(token)
            elif self._unknown is not None and ids[-1:] != [self._unknown]:
                ids.append(self._unknown)


def _chunk_pattern(tokens: list[str]) -> str:
    """A regular expression whose matches are chunks: they end only where merging never crosses.

    It tries, in this order: a word, up to "▁" or to a mark that follows a letter in no token;
    marks, up to "▁" or to a letter if the last mark precedes a letter in no token; whatever stands
    between two runs of "▁".
    """
    glued, after, before = set[int](), set[int](), set[int]()
    for first in range(0, len(tokens), _TOKENS_AT_ONCE):
        text = "\0".join(tokens[first : first + _TOKENS_AT_ONCE])
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        left, right = codes[:-1], codes[1:]
        small = codes | 0x20  # of a letter A-Z or a-z: its small letter
        letter = (small >= ord("a")) & (small <= ord("z"))
        glued.update(np.unique(left[(right == ord(SPACE)) & (left != ord(SPACE))]).tolist())
        after.update(np.unique(right[letter[:-1] & (right < 0x80)]).tolist())
        before.update(np.unique(left[letter[1:] & (left < 0x80)]).tolist())
    glue, after_letter, before_letter = map(_characters, (glued, after, before))
    before_space = f"(?={SPACE})" + (f"(?<![{glue}])" if glue else "")
    stop = rf"(?=[\x01-\x7f])(?![A-Za-z{after_letter}])"
    head = rf"(?<=[\x01-\x7f])(?<![A-Za-z{before_letter}])(?=[A-Za-z])"
    word = f"{SPACE}*[A-Za-z]+(?:{before_space}|{stop})"
    marks = f"{SPACE}*[^{SPACE}A-Za-z]+(?:{before_space}|{head})"
    rest = f"{SPACE}*[^{SPACE}]+"
    if glue:
        rest += f"(?:(?<=[{glue}]){SPACE}+[^{SPACE}]*)*"
    return f"{word}|{marks}|{rest}|{SPACE}+"


def _characters(codes: set[int]) -> str:
    """The characters, for use within [...]; 0 stands between tokens."""
    return "".join(re.escape(chr(code)) for code in sorted(codes) if code)
