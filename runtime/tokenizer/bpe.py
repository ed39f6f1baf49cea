"""BPE as llama.cpp does it: cut into words, merge by rank, spell unknown symbols in bytes."""

import re

from .merge import MergeCache, merge
from .split import split_words
from .unicode_table import is_space
from .vocab import Vocab


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte: the same code, or the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {byte: chr(byte) for byte in printable}
    return alphabet | {byte: chr(256 + i) for i, byte in enumerate(others)}


BYTE_TO_CHARACTER = _byte_alphabet()
CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}

# One character as llama.cpp reads it: continuation bytes are checked, the value is not.
_LENIENT = re.compile(
    rb"[\x00-\x7f]+|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.",
    re.DOTALL,
)


def decode_lenient(raw: bytes) -> str:
    """UTF-8 with llama.cpp's tolerance.

    A byte that begins no character becomes U+FFFD, and so does a value beyond U+10FFFF. Overlong
    forms and surrogates are decoded to their value.
    """
    return "".join(map(_character, _LENIENT.findall(raw)))


def _character(raw: bytes) -> str:
    if raw[0] < 0x80:
        return raw.decode("ascii")
    if len(raw) == 1:
        return "\ufffd"
    code = raw[0] & (0x7F >> len(raw))
    for byte in raw[1:]:
        code = code << 6 | byte & 0x3F
    return chr(code) if code <= 0x10FFFF else "\ufffd"


class BytePair:
    """Ids of text without special tokens."""

    def __init__(self, vocab: Vocab) -> None:
        vocab.merges  # noqa: B018  # read them while the file is open; raises where there are none
        self._pre = vocab.pre_tokenizer
        self._ids = vocab.ids
        self._vocab = vocab
        self._drop_spaces = vocab.model == "whitespace"
        self._lowercase = vocab.lowercase
        self._cache = MergeCache(self._merge)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        if self._pre.escape_spaces:
            text = text.replace(" ", "▁")
        if self._drop_spaces:
            words = self._words_between_spaces(text)
        else:
            words = split_words(text, self._pre.steps)
        return self._cache.encode(words)

    def encode_raw(self, raw: bytes) -> list[int]:
        """Ids of bytes that are not UTF-8."""
        return self.encode(decode_lenient(raw))

    def _words_between_spaces(self, text: str) -> list[str]:
        text = "".join(" " if is_space(c) else c for c in text)
        if self._lowercase:
            text = "".join(c.lower()[0] for c in text)
        segments = filter(None, text.split(" "))
        return [word for segment in segments for word in split_words(segment, self._pre.steps)]

    def _merge(self, word: str) -> list[int]:
        pre, rank = self._pre, self._vocab.ranks.get
        if pre.byte_level:
            word = word.encode("utf-8", "surrogatepass").decode("latin-1")
            word = word.translate(BYTE_TO_CHARACTER)
        whole = pre.ignore_merges or (pre.newline_words and not word.strip("\n"))
        if whole and word in self._ids:
            return [self._ids[word]]
        ids: list[int] = []
        for symbol in merge(list(word), lambda left, right: rank(f"{left} {right}")):
            token = self._ids.get(symbol)
            if token is not None:
                ids.append(token)
            else:
                ids += self._spell(symbol)
        return ids

    def _spell(self, symbol: str) -> list[int]:
        """The tokens of a symbol's bytes; bytes without a token are dropped."""
        raw = symbol.encode("utf-8", "surrogatepass")
        if self._pre.byte_level:
            texts = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in raw]
        else:
            texts = [f"<0x{byte:02X}>" for byte in raw]
        return [self._ids[text] for text in texts if text in self._ids]
