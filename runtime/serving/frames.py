"""Messages on a socket: a length, a little-endian uint32, then the message in msgpack.

┌───────────┬──────────────────┐
│ length n  │ n bytes, msgpack │
│ 4 bytes   │ {"type": …, …}   │
└───────────┴──────────────────┘
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from ...system.errors import KvarnError

T = TypeVar("T")

LENGTH = struct.Struct("<I")
FRAME_BYTES = 1 << 28
"""The most bytes of one message."""


class FrameError(KvarnError):
    """Bytes that are no frame: nothing that follows them can be read."""


class BadMessage(KvarnError):
    """A frame whose message is not one of those expected. id: the number in it, or -1."""

    def __init__(self, error: Exception, data: bytes) -> None:
        super().__init__(f"a message cannot be read: {error}")
        self.id = _number_in(data)


def encoded(message: msgspec.Struct) -> bytes:
    """The frame of a message; `FrameError` for one that is too long."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(checked_length(len(data))) + data


def checked_length(length: int) -> int:
    """The length of a message, if there can be such a message."""
    if not 0 < length <= FRAME_BYTES:
        raise FrameError(f"a frame of {length:,} bytes: expected 1 to {FRAME_BYTES:,}")
    return length


class Decoder(Generic[T]):
    """Reads messages of the types that one side sends."""

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)

    def decode(self, data: bytes) -> T:
        """The message; `BadMessage` if it is none."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessage(error, data) from error


class Connection(Generic[T]):
    """A blocking socket: one thread receives, any thread sends."""

    def __init__(self, end: socket.socket, kinds: Any) -> None:
        self._socket, self._decoder = end, Decoder[T](kinds)
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; OSError once the other side is gone."""
        frame = encoded(message)
        with self._sending:
            self._socket.sendall(frame)

    def receive(self) -> T | None:
        """The next message; None once the other side is gone.

        Raises `BadMessage`, after which the next one can be read, and `FrameError`.
        """
        head = self._exactly(LENGTH.size)
        if head is None:
            return None
        data = self._exactly(checked_length(LENGTH.unpack(head)[0]))
        return None if data is None else self._decoder.decode(bytes(data))

    def messages(self, reject: Callable[[BadMessage], None]) -> Iterator[T]:
        """All messages until the other side is gone; `reject` is told of those that are none.
        Raises `FrameError`."""
        while True:
            try:
                message = self.receive()
            except BadMessage as error:
                reject(error)
                continue
            if message is None:
                return
            yield message

    def close(self) -> None:
        """End it: the other side, and the thread that receives, see that nobody is left."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _exactly(self, n: int) -> bytearray | None:
        buffer = bytearray(n)
        view = memoryview(buffer)
        while view:
            try:
                n_read = self._socket.recv_into(view)
            except ConnectionError:
                return None
            if not n_read:
                return None
            view = view[n_read:]
        return buffer


def _number_in(data: bytes) -> int:
    try:
        number = msgspec.msgpack.decode(data)["id"]
    except Exception:
        return -1
    return number if type(number) is int else -1
