"""Arguments of the C functions, what goes back to the program, and how a call can fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...system.errors import KvarnError
from ...system.text import one_line
from ..context import Progress
from .options import BadArgument, parsed_json

_MOST_BYTES = 1 << 40
"""No text is larger: a length above it is a negative number, or no length at all."""


class InUse(KvarnError):
    """What was to be freed is still in use."""


class Cancelled(KvarnError):
    """The program asked to stop."""


class Refused(Exception):
    """The C part has set the error text; the argument is the code."""


@dataclass
class Arguments:
    """Reads and writes C's memory; `ffi` and `lib` are cffi's for the C part."""

    ffi: Any
    lib: Any

    def log(self, text: str) -> None:
        """Pass each line to the program's listener."""
        for line in filter(str.strip, text.splitlines()):
            self.lib.call_log(one_line(line).encode("utf-8", "backslashreplace"))

    def string(
        self, text: Any, name: str = "the options", decode: Callable[[bytes], str] | None = None
    ) -> str | None:
        """A text that ends with NUL; None for NULL. name: of the argument, for errors."""
        if text == self.ffi.NULL:
            return None
        raw = self.ffi.string(text)
        return decoded(raw, name) if decode is None else decode(raw)

    def pack_name(self, text: Any) -> str:
        name = self.string(text, decode=os.fsdecode)
        if not name:
            raise BadArgument("the name of the pack is NULL or empty")
        return name

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
        return list(self.ffi.unpack(ids, n))

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
        """Calls the program's `on_progress`, which may ask to stop."""

        def progress(done: int, total: int) -> None:
            if on_progress != self.ffi.NULL and self.lib.call_progress(
                on_progress, done, total, user
            ):
                raise Cancelled(f"on_progress asked to stop after {done} of {total}")

        return progress


def decoded(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte, verb = raw[error.start], "are" if name.endswith("s") else "is"
        raise BadArgument(
            f"{name} {verb} not UTF-8: found the byte 0x{byte:02x} at offset {error.start}"
        ) from error


def check_flags(flags: int, known: int) -> None:
    if flags & ~known:
        raise BadArgument(f"the flags are {flags}: expected a sum of those in kvarn.h")


def messages_of(text: str | None) -> tuple[str | None, list[dict[str, str]], str]:
    """The system message, the messages between, and the last one, which is to be answered."""
    expected = 'expected [{"role": "user", "content": "…"}, …]'
    messages = None if text is None else parsed_json(text, "the messages")
    if not isinstance(messages, list) or not messages:
        raise BadArgument(f"the messages are no array, or an empty one: {expected}")
    for i, message in enumerate(messages):
        is_message = isinstance(message, dict) and message.keys() == {"role", "content"}
        if not is_message or {type(value) for value in message.values()} != {str}:
            raise BadArgument(f"message {i} is wrong: {expected}")
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
    if not messages or messages[-1]["role"] != "user":
        raise BadArgument('the last message is not one of the role "user"')
    question = messages.pop()["content"]
    return system, messages, question
