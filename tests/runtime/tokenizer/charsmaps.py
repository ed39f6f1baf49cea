"""Maps of characters as SentencePiece compiles them: a trie as double array (Darts-clone), then the
replacements. Written from the format; llama.cpp and tokenizers read what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RULES = {
    "\t": " ",
    "\n": " ",
    "\r\n": " ",
    "\u3000": " ",
    "\u200b": "",
    "\x7f": "",
    "e\u0301": "é",
    "e": "e",
    "…": "...",
    "①": "1",
    "½": "1⁄2",
    "㈠": "(一)",
    "１２": "12",
    "ｱ": "ア",
    "ﬁ": "fi",
    "K": "K",
    "µ": "μ",
    "\u2028": " ",
    "ffi": "ffi",
    "٣٤": "3 4",
}
"""As NFKC, and others that begin or end alike, remove what they replace, or make spaces."""


def compiled(rules: Mapping[str, str]) -> bytes:
    """The bytes of a file's `precompiled_charsmap`."""
    trie: dict[int, Any] = {}
    texts, places = b"", {}
    for text in dict.fromkeys(rules.values()):
        places[text] = len(texts)
        texts += text.encode() + b"\0"
    for source, text in rules.items():
        node = trie
        for byte in source.encode():
            node = node.setdefault(byte, {})
        node[0] = places[text]  # the value's label is 0
    units = [0]
    _place(trie, 0, units, {0}, set())
    units += [0] * (-len(units) % 256)  # readers look at children that are none
    return (
        len(units * 4).to_bytes(4, "little")
        + b"".join(unit.to_bytes(4, "little") for unit in units)
        + texts
    )


def _place(
    node: dict[int, Any], at: int, units: list[int], used: set[int], bases: set[int]
) -> None:
    """Give a node's children places `at ^ offset ^ label`, and theirs to them."""
    base = next(
        base
        for base in range(1, 1 << 21)
        if base not in bases and not any(base ^ label in used for label in node)
    )
    bases.add(base)
    offset = at ^ base
    assert offset < 1 << 21
    units[at] |= offset << 10 | (1 << 8 if 0 in node else 0)
    places = {label: base ^ label for label in node}
    used.update(places.values())
    units += [0] * (max(places.values()) + 1 - len(units))
    for label, place in places.items():
        units[place] = node[0] | 1 << 31 if label == 0 else label
    for label, place in places.items():
        if label:
            _place(node[label], place, units, used, bases)
