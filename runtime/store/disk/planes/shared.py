"""Full segments of packs that are held in memory: once for all contexts of the process.

    pack ── segment ──► Piece ◄── context A
                              ◄── context B

A full segment never changes: who overwrites one of its tokens takes a copy first (`Plane.reopen`).
So contexts that read one pack, or packs that begin with it, hold the same piece, and the last of
them frees it. A piece is known by its place, the file and the slot, and by the digests that the
pack's log has of it: a file that another one replaces, and a slot that is written anew after a
crash, have other pieces.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from ..format.log import Place

Key = tuple[int, int, int, int, tuple[bytes, ...]]


class Piece:
    """Memory with the bytes of a full segment; nobody writes to it."""

    __slots__ = ("__weakref__", "address", "memory")

    def __init__(self, memory: memoryview, address: int) -> None:
        self.memory, self.address = memory, address


_pieces: weakref.WeakValueDictionary[Key, Piece] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_piece(
    place: Place, plane: str, n_bytes: int, read: Callable[[], tuple[memoryview, int]]
) -> Piece:
    """The piece of a full segment, n_bytes in each file of its plane. Where no context has it,
    `read` gives its memory and address; raises what that raises."""
    key = _key(place, plane, n_bytes)
    with _lock:
        piece = _pieces.get(key)
        if piece is None:
            _pieces[key] = piece = Piece(*read())
        return piece


def is_shared(place: Place, plane: str, n_bytes: int) -> bool:
    """Whether a context holds the segment in memory."""
    return _key(place, plane, n_bytes) in _pieces


def _key(place: Place, plane: str, n_bytes: int) -> Key:
    file = os.fstat(place.folder.fd(place.folder.names(plane)[0]))
    return file.st_dev, file.st_ino, place.slot, n_bytes, place.digests
