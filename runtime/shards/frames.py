"""Messages between a head and its shards: a header of fixed size, then plain arrays.

┌────────┬──────┬──────────┬─────┬───────────────┬────────────────────────────────┬──────────────┐
│ "kvsh" │ kind │ n arrays │ 0   │ bytes of all  │ n times: type, dimensions, 0,  │ bytes of the │
│        │      │          │     │ arrays        │ four sizes (0 where unused)    │ arrays       │
│ 4      │ 1    │ 1        │ 2   │ 4             │ 1 + 1 + 2 + 4 × 4              │              │
└────────┴──────┴──────────┴─────┴───────────────┴────────────────────────────────┴──────────────┘

All numbers are little-endian. Text is an array of its bytes in UTF-8. Sizes are compared with what
the receiver takes before memory is taken for them, and with each other.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import U8
from ...system.errors import KvarnError

MOST_BYTES = 256 << 20
"""Of the arrays of a message."""
MOST_GREETING = 32 << 10
"""Of those by which two processes learn whom they talk to."""
MOST_ARRAYS = 8
MOST_ROWS = 64
"""Rows of queries of a question, at most."""
ROOM = 64 << 10
"""Bytes that most messages fit into."""
_MAGIC = b"kvsh"
_HEAD, _ARRAY = struct.Struct("<4sBBHI"), struct.Struct("<BBH4I")
_TYPES = tuple(np.dtype(name) for name in ("u1", "<u4", "<u8", "<i8", "<f4", "<f8"))
_CODES = {dtype: code for code, dtype in enumerate(_TYPES)}
_MOST_DIMENSIONS = 4
_MOST_ITEMS = 1 << 60
"""Of an array, also where one of its sizes is 0: NumPy refuses more."""
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", None)
_KNOWN = 256
"""Shapes of messages that are remembered: those of each token are few, and Python is slow."""
Arrays = Sequence[NDArray[Any]]
Shape = tuple[np.dtype[Any], tuple[int, ...]]


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1
    PROOF = 2
    FACTS = 3
    ERROR = 4
    ANSWER = 5
    ROWS = 6
    NEAREST = 7
    LARGEST = 8
    CHOSEN = 9
    SKETCHED = 10


_KINDS = {int(kind): kind for kind in Kind}


class Message(NamedTuple):
    """A message: `heading` is what stands before the bytes of its arrays, `data`."""

    kind: Kind
    heading: bytes
    data: bytes | bytearray | memoryview

    @staticmethod
    def of(kind: Kind, arrays: Arrays) -> Message:
        """One of these arrays. `FrameError` for more than `MOST_BYTES`."""
        heading = heading_of(kind, tuple([(array.dtype, array.shape) for array in arrays]))
        return Message(kind, heading, joined(arrays))

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """Its arrays, which share its memory."""
        arrays = [np.ndarray(x[1], x[0], self.data, x[2]) for x in _shapes(self.heading)]
        return [x if x.flags.aligned else x.copy() for x in arrays]

    @property
    def view(self) -> memoryview:
        """The bytes of its arrays."""
        return memoryview(self.data)

    @property
    def n_bytes(self) -> int:
        """Bytes of its arrays."""
        return len(self.data)

    def cut(self, first: int, stop: int) -> tuple[bytes, memoryview]:
        """All bytes but those of the arrays first … stop - 1, and these. `FrameError` for fewer
        arrays."""
        shapes = _shapes(self.heading)
        if stop > len(shapes):
            raise FrameError(f"a question has {len(shapes)} arrays")
        data, begin = self.view, shapes[first][2]
        end = shapes[stop][2] if stop < len(shapes) else len(data)
        return b"".join((self.heading, data[:begin], data[end:])), data[begin:end]


class QuestionTemplate:
    """A question of arrays of the same types and shapes each time, in memory that is filled."""

    def __init__(self, kind: Kind, arrays: Arrays) -> None:
        """arrays: what they are at first."""
        self._kind, self._heading, data = Message.of(kind, arrays)
        self._data = bytearray(data)
        self._arrays = []
        for array, (_, _, at) in zip(arrays, _shapes(self._heading)):
            self._arrays.append(memoryview(self._data)[at : at + array.nbytes])

    def fill(self, i: int, x: NDArray[Any] | bytes) -> None:
        """Fill array i with one as large, in C's order, that is not empty; or with bytes."""
        self._arrays[i][:] = x if isinstance(x, bytes) else x.data.cast("B")

    def message(self) -> Message:
        """The question, with what the arrays hold now."""
        return Message(self._kind, self._heading, bytes(self._data))


class FrameError(KvarnError):
    """Bytes that are no message: nothing that follows them can be read."""


class ConnectionClosed(ConnectionError):
    """The other side has closed the connection."""


def text_array(text: str) -> U8:
    """A text as an array, uint8 (bytes,)."""
    return np.frombuffer(text.encode(), np.uint8)


def text_of(array: NDArray[Any]) -> str:
    """The text in an array; what is no UTF-8 is replaced. `FrameError` for arrays of numbers."""
    if array.dtype != np.uint8 or array.ndim != 1:
        raise FrameError(f"expected a text, found {array.dtype} {array.shape}")
    return array.tobytes().decode("utf-8", "replace")


def joined(arrays: Arrays) -> bytes:
    """The bytes of arrays, one after the other."""
    plain: list[Any] = [x if x.flags.c_contiguous else x.tobytes() for x in arrays]
    return b"".join(plain)


def send(
    connection: socket.socket, kind: Kind, arrays: Arrays, seconds: float | None = None
) -> int:
    """`put` a message of these arrays; returns their bytes."""
    message = Message.of(kind, arrays)
    put(connection, message, seconds)
    return message.n_bytes


def put(connection: socket.socket, message: Message, seconds: float | None = None) -> None:
    """Send a message. seconds: in which all of it has to be taken; None: the connection's
    timeout."""
    data, n = b"".join((message.heading, message.data)), 0
    if seconds is not None:
        if _AT_ONCE is not None and connection.gettimeout() is None:
            try:  # which sets no timeout, and seldom has to
                n = connection.send(data, _AT_ONCE)
            except BlockingIOError:
                n = 0
            if n == len(data):
                return
        connection.settimeout(seconds)
    connection.sendall(memoryview(data)[n:])


@lru_cache(_KNOWN)
def heading_of(kind: Kind, shapes: tuple[Shape, ...]) -> bytes:
    """What a message of arrays of these types and shapes begins with. `FrameError` for more bytes
    than `MOST_BYTES`."""
    n_bytes = sum(_bytes_of(dtype, shape) for dtype, shape in shapes)
    if n_bytes > MOST_BYTES:
        raise FrameError(f"a message of {n_bytes:,} bytes, expected at most {MOST_BYTES:,}")
    parts = [_HEAD.pack(_MAGIC, kind, len(shapes), 0, n_bytes)]
    for dtype, shape in shapes:
        sizes = shape + (0,) * (_MOST_DIMENSIONS - len(shape))
        parts.append(_ARRAY.pack(_CODES[dtype], len(shape), 0, *sizes))
    return b"".join(parts)


def receive(
    connection: socket.socket,
    most: int = MOST_BYTES,
    deadline: float | None = None,
    rest_seconds: float | None = None,
    room: bytearray | None = None,
) -> Message:
    """The next message, whose arrays have at most `most` bytes.

    deadline: of `time.monotonic`, by which all of it has to be there; None: the connection's
    timeout, for each part. rest_seconds: in which all of it has to follow its first byte, for which
    the connection's timeout counts. room: memory into which a message that nothing may follow is
    received, most often by one call of the system; None: what follows is left. Raises `FrameError`
    for bytes that are no message, `ConnectionClosed` at the end, TimeoutError and other errors of
    the connection.
    """
    view, n = memoryview(bytearray(_HEAD.size) if room is None else room), 0
    if rest_seconds is not None:
        n = _take(connection, view, 0, 1, None)
        deadline = time.monotonic() + rest_seconds
    n = _take(connection, view, n, _HEAD.size, deadline)
    magic, number, n_arrays, zero, n_bytes = _HEAD.unpack_from(view)
    kind = _KINDS.get(number)
    if magic != _MAGIC or kind is None or zero or n_arrays > MOST_ARRAYS:
        raise FrameError("it does not speak the protocol of kvarn's shards")
    if n_bytes > most:
        raise FrameError(f"a message of {n_bytes:,} bytes, expected at most {most:,}")
    begin = _HEAD.size + n_arrays * _ARRAY.size
    stop = begin + n_bytes
    if n > stop:
        raise FrameError("it goes on before it is answered")
    if n < stop:
        whole = memoryview(bytearray(stop))
        whole[:n] = view[:n]
        _take(connection, whole, n, stop, deadline)
        data: bytearray | memoryview = whole[begin:]
    else:  # messages to come use the room
        whole, data = view, bytearray(view[begin:stop])
    heading = bytes(whole[:begin])
    _shapes(heading)
    return Message(kind, heading, data)


def is_timeout(error: OSError) -> bool:
    """Whether the other side is there, and says nothing in time. Of a machine that has vanished,
    the system tells with a TimeoutError, too, but that has a number."""
    return isinstance(error, TimeoutError) and error.errno is None


@lru_cache(_KNOWN)
def _shapes(heading: bytes) -> list[tuple[np.dtype[Any], tuple[int, ...], int]]:
    """Type, shape and first byte of each array of a message."""
    shapes, at, (*_, n_bytes) = [], 0, _HEAD.unpack_from(heading)
    for code, n_dimensions, zero, *sizes in _ARRAY.iter_unpack(heading[_HEAD.size :]):
        known = code < len(_TYPES) and 1 <= n_dimensions <= _MOST_DIMENSIONS and not zero
        if not known or any(sizes[n_dimensions:]):
            raise FrameError("a message describes an array that cannot be")
        dtype, shape = _TYPES[code], tuple(sizes[:n_dimensions])
        shapes.append((dtype, shape, at))
        at += _bytes_of(dtype, shape)
    if at != n_bytes:
        raise FrameError(f"its arrays have other sizes than the {n_bytes:,} bytes of the message")
    if any(prod(max(1, size) for size in shape) > _MOST_ITEMS for _, shape, _ in shapes):
        raise FrameError("a message describes an array that cannot be")
    return shapes


def _bytes_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    n_bytes = dtype.itemsize
    for size in shape:  # numbers of Python do not overflow
        n_bytes *= size
    return n_bytes


def _take(
    connection: socket.socket, view: memoryview, n: int, least: int, deadline: float | None
) -> int:
    """Receive into view[n:] until it has `least` bytes or more; how many. `ConnectionClosed` if the
    connection ends before."""
    while n < least:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole message in time")
            connection.settimeout(left)
        more = connection.recv_into(view[n:])
        if not more:
            raise ConnectionClosed("the connection was closed")
        n += more
    return n
