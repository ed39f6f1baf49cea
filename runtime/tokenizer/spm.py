"""SentencePiece BPE as llama.cpp does it: join by score, spell the rest in bytes.

Spaces are written as U+2581 "▁". The whole text is one piece to merge, but no merge crosses a place
where no token holds the two characters that meet there; so the text is cut at such places into
chunks, about words, and each chunk is merged once and remembered. That gives the same ids: the
order of merges in one chunk does not matter to another.
"""

import re

import numpy as np

from .merge import merge
from .vocab import Vocab

SPACE = "▁"
_TOKENS_AT_ONCE = 1 << 16  # of a vocabulary: bounds the copies
_CACHED_LENGTH = 64  # chunks longer than this (characters) rarely come again
_CACHE_SIZE = 1 << 18
# Number of bytes that a first byte announces, by its high four bits; no check of the others.
_ANNOUNCED = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4)


class SentencePiece:
    """Ids of text without special tokens."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = vocab.ids
        self._scores = vocab.scores
        self._unknown = vocab.roles.get("unk")
        self._bytes = [vocab.ids.get(f"<0x{b:02X}>", vocab.ids.get(chr(b))) for b in range(256)]
        self._chunks = re.compile(_chunk_pattern(vocab.tokens)).findall
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        text = text.replace(" ", SPACE)
        cache = self._cache
        if len(cache) > _CACHE_SIZE:
            cache.clear()
        ids: list[int] = []
        for chunk in self._chunks(text):
            found = cache.get(chunk)
            if found is None:
                found = self._merge(list(chunk))
                if len(chunk) <= _CACHED_LENGTH:
                    cache[chunk] = found
            ids += found
        return ids

    def encode_raw(self, raw: bytes) -> list[int]:
        """Ids of bytes that are not UTF-8: symbols are as long as their first byte says."""
        raw = raw.replace(b" ", SPACE.encode())
        symbols = []
        start = 0
        while start < len(raw):
            end = start + _ANNOUNCED[raw[start] >> 4]
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
        """Append a symbol's bytes; where bytes have no token, one unknown for a run of them."""
        for byte in symbol.encode("utf-8", "surrogateescape"):
            token = self._bytes[byte]
            if token is not None:
                ids.append(token)
            elif self._unknown is not None and ids[-1:] != [self._unknown]:
                ids.append(self._unknown)


def _chunk_pattern(tokens: list[str]) -> str:
    """Chunks end only where no token holds both neighbours (see above).

    Three kinds, tried in this order: a word up to "▁" or a mark that no token joins to a letter
    before it; marks up to "▁" or up to a letter, where no token joins the last to a letter after
    it; whatever stands between two runs of "▁".
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
