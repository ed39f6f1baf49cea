"""What the arguments of the C functions hold, and what goes back to the program."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...system.text import one_line
from . import options
from .errors import BadArgument, Cancelled

if TYPE_CHECKING:
    from ..context import Progress

_MOST_BYTES = 1 << 40
"""No text is larger: a length beyond it is a negative number, or none at all."""


@dataclass
class Arguments:
    """Reads and writes C's memory; `ffi` and `lib` are cffi's for the C part."""

    ffi: Any
    lib: Any

    def log(self, text: str) -> None:
        """Tell the program's listener of each line."""
        for line in filter(str.strip, text.splitlines()):
            self.lib.call_log(one_line(line).encode("utf-8", "backslashreplace"))

    def string(
        self, text: Any, what: str = "the options", decode: Callable[[bytes], str] | None = None
    ) -> str | None:
        """A text that ends with NUL; None for NULL."""
        if text == self.ffi.NULL:
            return None
        raw = self.ffi.string(text)
        return decoded(raw, what) if decode is None else decode(raw)

    def name(self, name: Any) -> str:
        found = self.string(name, what="the name", decode=os.fsdecode)
        if not found:
            raise BadArgument("the name of the pack is NULL or empty")
        return found

    def utf8(self, text: Any, n: int) -> str:
        if text == self.ffi.NULL:
            raise BadArgument("the text is NULL")
        if n > _MOST_BYTES:
            raise BadArgument(f"the text has {n} bytes: expected at most {_MOST_BYTES}")
        return decoded(bytes(self.ffi.buffer(text, n)), "the text")

    def ids(self, ids: Any, n: int) -> list[int]:
        if ids == self.ffi.NULL:
            raise BadArgument("the ids are NULL")
        if n > _MOST_BYTES:
            raise BadArgument(f"there are {n} ids: expected at most {_MOST_BYTES}")
        found: list[int] = self.ffi.unpack(ids, n)
        return found

    def fill(self, buffer: Any, room: int, text: bytes) -> int:
        """Write a text and a NUL; returns their size."""
        self.copy(buffer, room, text + b"\0", len(text) + 1)
        return len(text) + 1

    def copy(self, buffer: Any, room: int, data: bytes, size: int) -> None:
        """Write `size` items if there is room for them."""
        if buffer == self.ffi.NULL and room:
            raise BadArgument(f"the buffer is NULL, and its room is {room}")
        if size <= room:
            self.ffi.memmove(buffer, data, len(data))

    def progress(self, on_progress: Any, user: Any) -> Progress:
        """Tells the program, which may ask to stop."""

        def progress(done: int, total: int) -> None:
            if on_progress != self.ffi.NULL and self.lib.call_progress(
                on_progress, done, total, user
            ):
                raise Cancelled(f"on_progress asked to stop after {done} of {total}")

        return progress


def decoded(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, verb = raw[error.start], "are" if what.endswith("s") else "is"
        raise BadArgument(
            f"{what} {verb} not UTF-8: found the byte 0x{byte:02x} at offset {error.start}"
        ) from error


def check_flags(flags: int, known: int) -> None:
    if flags & ~known:
        raise BadArgument(f"the flags are {flags}: expected a sum of those in kvarn.h")


def messages_of(text: str | None) -> tuple[str | None, list[dict[str, str]], str]:
    """The system message, the messages between, and the last one, which is to be answered."""
    expected = 'expected [{"role": "user", "content": "…"}, …]'
    found = None if text is None else options.parsed_json(text, "the messages")
    if not isinstance(found, list) or not found:
        raise BadArgument(f"the messages are no array, or an empty one: {expected}")
    for i, message in enumerate(found):
        is_message = isinstance(message, dict) and message.keys() == {"role", "content"}
        if not is_message or {type(value) for value in message.values()} != {str}:
            raise BadArgument(f"message {i} is not what it should be: {expected}")
    system = found.pop(0)["content"] if found[0]["role"] == "system" else None
    if not found or found[-1]["role"] != "user":
        raise BadArgument('the last message is not one of the role "user"')
    question = found.pop()["content"]
    return system, found, question
