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
_MAGIC = b"kvsh"
_HEAD, _ARRAY = struct.Struct("<4sBBHI"), struct.Struct("<BBH4I")
_TYPES = tuple(np.dtype(name) for name in ("u1", "<u4", "<u8", "<i8", "<f4", "<f8"))
_CODES = {dtype: code for code, dtype in enumerate(_TYPES)}
_MOST_DIMENSIONS = 4
Arrays = Sequence[NDArray[Any]]


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


_KINDS = frozenset(Kind)


class Message(NamedTuple):
    """A message as it arrived."""

    kind: Kind
    arrays: list[NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays)


class FrameError(KvarnError):
    """Bytes that are no message: nothing that follows them can be read."""


class Gone(ConnectionError):
    """The other side has closed the connection."""


def text_array(text: str) -> U8:
    """A text as an array, uint8 (bytes,)."""
    return np.frombuffer(text.encode(), np.uint8)


def text_of(array: NDArray[Any]) -> str:
    """The text in an array; what is no UTF-8 is replaced. `FrameError` for arrays of numbers."""
    if array.dtype != np.uint8 or array.ndim != 1:
        raise FrameError(f"expected a text, found {array.dtype} {array.shape}")
    return array.tobytes().decode("utf-8", "replace")


def send(connection: socket.socket, kind: Kind, arrays: Arrays) -> int:
    """Send a message; returns the bytes of its arrays. `FrameError` for more than `MOST_BYTES`."""
    n_bytes = sum(array.nbytes for array in arrays)
    if n_bytes > MOST_BYTES:
        raise FrameError(f"a message of {n_bytes:,} bytes, expected at most {MOST_BYTES:,}")
    parts = [_HEAD.pack(_MAGIC, kind, len(arrays), 0, n_bytes)]
    for array in arrays:
        sizes = array.shape + (0,) * (_MOST_DIMENSIONS - array.ndim)
        parts.append(_ARRAY.pack(_CODES[array.dtype], array.ndim, 0, *sizes))
    parts += [array.tobytes() for array in arrays]
    connection.sendall(b"".join(parts))
    return n_bytes


def receive(
    connection: socket.socket,
    most: int = MOST_BYTES,
    deadline: float | None = None,
    rest_seconds: float | None = None,
) -> Message:
    """The next message, whose arrays have at most `most` bytes.

    deadline: of `time.monotonic`, by which all of it has to be there; None: the connection's
    timeout, for each part. rest_seconds: in which all of it has to follow its first byte, for which
    the connection's timeout counts. Raises `FrameError` for bytes that are no message, `Gone` at
    the end, TimeoutError and other errors of the connection.
    """
    head = b""
    if rest_seconds is not None:
        head = connection.recv(_HEAD.size)
        if not head:
            raise Gone("the connection was closed")
        deadline = time.monotonic() + rest_seconds
    if len(head) < _HEAD.size:
        head += _take(connection, _HEAD.size - len(head), deadline)
    magic, kind, n_arrays, zero, n_bytes = _HEAD.unpack(head)
    if magic != _MAGIC or kind not in _KINDS or zero or n_arrays > MOST_ARRAYS:
        raise FrameError("it does not speak the protocol of kvarn's shards")
    if n_bytes > most:
        raise FrameError(f"a message of {n_bytes:,} bytes, expected at most {most:,}")
    rest = memoryview(_take(connection, n_arrays * _ARRAY.size + n_bytes, deadline))
    described, data = rest[: n_arrays * _ARRAY.size], rest[n_arrays * _ARRAY.size :]
    shapes = [_shape_of(entry) for entry in _ARRAY.iter_unpack(described)] if n_arrays else []
    sizes = [_bytes_of(dtype, shape) for dtype, shape in shapes]
    if sum(sizes) != n_bytes:
        raise FrameError(f"its arrays have other sizes than the {n_bytes:,} bytes of the message")
    at, arrays = 0, []
    for (dtype, shape), size in zip(shapes, sizes):
        stop = at + size
        try:
            array = np.frombuffer(data[at:stop], dtype).reshape(shape)
        except ValueError as error:  # no bytes, of sizes that NumPy cannot have beside a 0
            raise FrameError("a message describes an array that cannot be") from error
        arrays.append(array if array.flags.aligned else array.copy())
        at = stop
    return Message(Kind(kind), arrays)


def is_late(error: OSError) -> bool:
    """Whether the other side is there, and says nothing in time. Of a machine that has vanished,
    the system tells with a TimeoutError, too, but that has a number."""
    return isinstance(error, TimeoutError) and error.errno is None


def _shape_of(entry: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of an array of a message."""
    code, n_dimensions, zero, *sizes = entry
    known = code < len(_TYPES) and 1 <= n_dimensions <= _MOST_DIMENSIONS and not zero
    if not known or any(sizes[n_dimensions:]):
        raise FrameError("a message describes an array that cannot be")
    return _TYPES[code], tuple(sizes[:n_dimensions])


def _bytes_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    n_bytes = dtype.itemsize
    for size in shape:  # numbers of Python do not overflow
        n_bytes *= size
    return n_bytes


def _take(connection: socket.socket, n_bytes: int, deadline: float | None) -> bytearray:
    """The next bytes; `Gone` if the connection ends before."""
    data = bytearray(n_bytes)
    view = memoryview(data)
    while view:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no whole message in time")
            connection.settimeout(left)
        n = connection.recv_into(view)
        if not n:
            raise Gone("the connection was closed")
        view = view[n:]
    return data
