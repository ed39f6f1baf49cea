"""Free text before a trigger: what of it the next mask depends on.

llguidance walks the whole vocabulary for a mask of free text that ends at a text, since any token
may hold that. But such masks are few: they depend on how much of each trigger stands at the end of
the text, and on the bytes of a character that is not complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...tokenizer import Tokenizer

_LEADS = ((0xF0, 4), (0xE0, 3), (0xC0, 2))
"""Of UTF-8: the least first byte of a character, and its bytes."""


class MaskKey(NamedTuple):
    """What two texts have in common that have the same mask. ends: of each trigger, how many bytes
    stand at the end of the text; open: the bytes of an incomplete character."""

    ends: tuple[int, ...]
    open: bytes


class TriggerWatch:
    """Watches the text of an answer for its first trigger.

    triggers: as in `Constraint`; those that `control` has are tokens. key: None once a trigger has
    come.
    """

    def __init__(
        self, triggers: Sequence[str], tokenizer: Tokenizer, control: Mapping[str, int]
    ) -> None:
        self._texts = [text.encode() for text in triggers if text not in control]
        self._tokens = {control[text] for text in triggers if text in control}
        self._control, self._piece = frozenset(control.values()), tokenizer.piece
        self._most = max([4, *map(len, self._texts)])
        self._tail = b""
        self.key: MaskKey | None = self._key() if triggers else None

    def push(self, token: int) -> None:
        """A token follows."""
        if self.key is None:
            return
        if token in self._control:
            self._tail = b""
            self.key = None if token in self._tokens else self._key()
            return
        text = self._tail + self._piece(token)
        self._tail = text[-self._most :]
        has_come = any(trigger in text for trigger in self._texts)
        self.key = None if has_come else self._key()

    def _key(self) -> MaskKey:
        ends = tuple(_shared(self._tail, text) for text in self._texts)
        return MaskKey(ends, _incomplete(self._tail))


def _shared(text: bytes, trigger: bytes) -> int:
    """The length of the longest prefix of a trigger that the text ends with."""
    sizes = range(min(len(trigger) - 1, len(text)), 0, -1)
    return next((n for n in sizes if text.endswith(trigger[:n])), 0)


def _incomplete(text: bytes) -> bytes:
    """The bytes at the end of a text that are no complete character."""
    for n in range(1, min(3, len(text)) + 1):
        first = text[-n]
        if first >= 0xC0:
            size = next(size for least, size in _LEADS if first >= least)
            return text[-n:] if n < size else b""
        if first < 0x80:
            break
    return b""
