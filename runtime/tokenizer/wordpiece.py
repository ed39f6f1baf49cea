"""WordPiece (BERT) as llama.cpp does it: clean, cut into words, longest token first."""

import unicodedata

from .bpe import decode_lenient
from .merge import MergeCache
from .unicode_table import general_class, is_space
from .vocab import Vocab

_PHANTOM = "▁"  # begins each word in GGUF's spelling, where BERT marks continuations with ##
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # BERT's 2B820, as the usual implementations have it
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Ids of text without special tokens. Loses spacing and, by default, case and accents."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = vocab.ids
        self._unknown = vocab.roles.get("unk")
        self._longest = max(map(len, vocab.tokens))
        self._lowercase, self._strip_accents = vocab.lowercase, vocab.strip_accents
        self._cleaned: dict[str, str] = {}
        self._cache = MergeCache(self._longest_tokens)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        cleaned = self._cleaned
        for character in set(text).difference(cleaned):
            cleaned[character] = self._clean(character)
        words = "".join(map(cleaned.__getitem__, text)).split(" ")
        return self._cache.encode(_PHANTOM + word for word in words if word)

    def encode_raw(self, raw: bytes) -> list[int]:
        """Ids of bytes that are not UTF-8."""
        return self.encode(decode_lenient(raw))

    def _clean(self, character: str) -> str:
        """The new form of a character: itself, its small letter, nothing, or a separate word."""
        if self._strip_accents and not "\ud800" <= character <= "\udfff":
            character = unicodedata.normalize("NFD", character)[0]
        if is_space(character):
            return " "
        group = general_class(character)
        if character in "\0\ufffd" or group == "C" or (self._strip_accents and group == "M"):
            return ""
        small = character.lower()[0] if self._lowercase else character
        code = ord(character)
        alone = group == "P" or (code < 0x7F and group == "S")
        if alone or any(first <= code <= last for first, last in _IDEOGRAPHS):
            return f" {small} "
        return small

    def _longest_tokens(self, word: str) -> list[int]:
        ids = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token = self._ids.get(word[start:end])
                if token is not None:
                    ids.append(token)
                    start = end
                    break
            else:  # a part without a token makes the whole word unknown
                return [] if self._unknown is None else [self._unknown]
        return ids
