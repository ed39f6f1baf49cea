"""How a unigram vocabulary changes characters: SentencePiece's compiled map, as files have it.

    u32 n_bytes · n_bytes of u32 units · texts, each ended by 0

The units are a double array (Darts-clone), a trie of the texts that are replaced. Of a unit:

    bit 31, bits 0-7   label: the byte that leads here (bit 31: none, bits 0-30 are a value)
    bit 8              a value hangs under the node: where the replacement begins among the texts
    bits 10-30, 9      offset of the children, times 256 if bit 9 is set

Child c of node i is i ^ offset ^ c, if its label is c; the value is child 0.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from .vocab import TokenizerError

_LABEL = 1 << 31 | 0xFF
_HAS_VALUE = 1 << 8
# One character, or what llama.cpp takes for one: its value is not checked.
_CHARACTER = re.compile(
    rb"[\x00-\x7f]|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}"
)
_BAD_BYTE = "\ufffd".encode()


class Charsmap:
    """Replaces the longest text that the map has at each place. An empty map replaces nothing.

    in_words: no text that is replaced has a space, so that words can be changed one by one.
    """

    def __init__(self, data: NDArray[np.uint8]) -> None:
        raw = data.tobytes()
        n_bytes = int.from_bytes(raw[:4], "little")
        if raw and (n_bytes % 4 or not 4 <= n_bytes < len(raw) - 4):
            raise TokenizerError(
                f"tokenizer.ggml.precompiled_charsmap has {len(raw)} bytes, and says that {n_bytes}"
                " of them are its index: the file is damaged"
            )
        units = np.frombuffer(raw, "<u4", n_bytes // 4, 4) if raw else np.empty(0, "<u4")
        self.in_words = not ((units & _LABEL) == ord(" ")).any()
        # By memoryview: single units are read, and copies of all would take far more memory.
        self._units = units.astype("=u4").data
        self._texts = raw[4 + n_bytes :]

    def apply(self, raw: bytes) -> bytes:
        """The changed text. Bytes that are not UTF-8 become U+FFFD, as llama.cpp reads them.

        Raises `TokenizerError` where the map points beyond its end.
        """
        if not self._units and raw.isascii():
            return raw
        made, at = [], 0
        while at < len(raw):
            length, value = self._longest(raw, at)
            if length:
                made.append(self._text(value))
            elif match := _CHARACTER.match(raw, at):
                length = match.end() - at
                made.append(match[0])
            else:
                length = 1
                made.append(_BAD_BYTE)
            at += length
        return b"".join(made)

    def _longest(self, raw: bytes, at: int) -> tuple[int, int]:
        """Length and value of the longest text that is replaced here; 0 if there is none."""
        units, length, value = self._units, 0, 0
        if not units:
            return 0, 0
        node = _offset(units[0])
        try:
            for stop in range(at, len(raw)):
                byte = raw[stop]
                node ^= byte
                unit = units[node]
                if not byte or unit & _LABEL != byte:
                    break
                node ^= _offset(unit)
                if unit & _HAS_VALUE:
                    length, value = stop - at + 1, units[node] & 0x7FFFFFFF
        except IndexError:
            raise _damaged() from None
        return length, value

    def _text(self, value: int) -> bytes:
        end = self._texts.find(b"\0", value)
        if end < 0:
            raise _damaged()
        return self._texts[value:end]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _damaged() -> TokenizerError:
    return TokenizerError(
        "tokenizer.ggml.precompiled_charsmap points beyond its end: the file is damaged"
    )
