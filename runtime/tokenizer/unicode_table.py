"""Classes of Unicode 15.1 characters, each represented by one 8-bit character.

The regular expressions of pre-tokenizers use `\\p{L}`, `\\p{N}`, …, which `re` does not know. So a
text is *folded* before matching: ASCII stays, and every other character becomes the character of
its class, which patterns name beside the ASCII members. Positions stay the same, so a match in the
folded text is a match in the text.

    letter 0xD2   number 0xD1   punctuation 0xD3   mark 0xD4   symbol 0xD5   white space 0x0B
    other 0xD0    Han letter 0xD6 and unassigned Han 0xD7 (only in the folding that tells Han apart)

The tables of Python 3.11 end at Unicode 14.0; `_ADDED` has the 5,116 characters of 15.0 and 15.1,
the version that llama.cpp uses, so that ids do not depend on the interpreter.
"""

import unicodedata
from collections.abc import Callable

LETTER, NUMBER, PUNCTUATION, MARK, SYMBOL, OTHER = "\xd2", "\xd1", "\xd3", "\xd4", "\xd5", "\xd0"
HAN_LETTER, HAN_OTHER = "\xd6", "\xd7"
SPACE = "\x0b"

# Members of a class, for use inside [...] in a pattern over folded text.
L = "A-Za-z" + LETTER
UPPER = "A-Z" + LETTER  # letters that are not a-z
LOWER = "a-z" + LETTER  # letters that are not A-Z
N = "0-9" + NUMBER
P = r"!-#%-*,-/:;?@\[-\]_{}" + PUNCTUATION
M = MARK
S = r"$+<=>\^`|~" + SYMBOL

# first-last:general class, of the characters that came after Unicode 14.0 (UnicodeData.txt 15.1).
_ADDED = """
cf3:M ece:M 2ffc-2fff:S 31ef:S 10efd-10eff:M 1123f-11240:L 11241:M 11b00-11b09:P 11f00-11f01:M
11f02:L 11f03:M 11f04-11f10:L 11f12-11f33:L 11f34-11f3a:M 11f3e-11f42:M 11f43-11f4f:P 11f50-11f59:N
1342f:L 13439-1343f:C 13440:M 13441-13446:L 13447-13455:M 1b132:L 1b155:L 1d2c0-1d2d3:N
1df25-1df2a:L 1e030-1e06d:L 1e08f:M 1e4d0-1e4eb:L 1e4ec-1e4ef:M 1e4f0-1e4f9:N 1f6dc:S 1f774-1f776:S
1f77b-1f77f:S 1f7d9:S 1fa75-1fa77:S 1fa87-1fa88:S 1faad-1faaf:S 1fabb-1fabd:S 1fabf:S 1face-1facf:S
1fada-1fadb:S 1fae8:S 1faf7-1faf8:S 2b739:L 2ebf0-2ee5d:L 31350-323af:L
"""
_FOLDED = {"L": LETTER, "N": NUMBER, "P": PUNCTUATION, "M": MARK, "S": SYMBOL}
# The ranges that Kimi's pre-tokenizer counts as Han, assigned or not.
_HAN = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


def _added() -> list[tuple[int, int, str]]:
    ranges = []
    for entry in _ADDED.split():
        span, group = entry.split(":")
        first, _, last = span.partition("-")
        ranges.append((int(first, 16), int(last or first, 16), group))
    return ranges


_ADDED_RANGES = _added()


def is_space(character: str) -> bool:
    """White space of Unicode; unlike `str.isspace`, not the separators 0x1C to 0x1F."""
    return character.isspace() and not "\x1c" <= character <= "\x1f"


def general_class(character: str) -> str:
    """First letter of the general category; "U" for a character that is not assigned."""
    category = unicodedata.category(character)
    if category != "Cn":
        return category[0]
    code = ord(character)
    return next((group for first, last, group in _ADDED_RANGES if first <= code <= last), "U")


class Fold(dict[int, str]):
    """A table for `str.translate`: folds each character beyond ASCII when it is first seen."""

    def __init__(self, fold: Callable[[str], str]) -> None:
        super().__init__((code, chr(code)) for code in range(128))
        self._fold = fold

    def __missing__(self, code: int) -> str:
        folded = self[code] = self._fold(chr(code))
        return folded


def fold_to_class(character: str) -> str:
    """The character of its class."""
    if is_space(character):
        return SPACE
    return _FOLDED.get(general_class(character), OTHER)


def fold_han(character: str) -> str:
    """Like `fold_to_class`, with separate classes for Han characters."""
    folded = fold_to_class(character)
    if any(first <= ord(character) <= last for first, last in _HAN):
        return HAN_LETTER if folded == LETTER else HAN_OTHER
    return folded


def fold_space(character: str) -> str:
    """0x0B, which `\\s` matches, for white space; other characters stay."""
    return SPACE if is_space(character) else character
