"""The system calls that make a pack: whole reads and writes, room, syncing, replacing.

Everything that must survive a crash goes through here, so that tests can make every call fail.
Links in a pack's folder are never followed, neither for reading nor for writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from ....system.files import new_file, open_regular
from ....system.files import sync_folder as sync_folder  # noqa: PLC0414 - for those who write
from ...home import mode_in

Data = bytes | memoryview

DIGEST = 8
"""Bytes of a digest (XXH3, 64 bits), which detects damage but no forgery."""


def digest(data: Data, chain: bytes = b"") -> bytes:
    """The digest of `chain`, which is the digest of what comes before, and `data`."""
    state = xxhash.xxh3_64(chain)
    state.update(data)
    return state.digest()


def open_file(path: Path, writable: bool) -> int:
    """A descriptor of the regular file, which is made if it is missing and `writable`.

    A new file is open to everybody that its folder is open to. Raises OSError, also for a link, a
    pipe or a device, without waiting for it.
    """
    return open_regular(path, writable, mode_in(path.parent) if writable else 0)


def read_file(path: Path, most: int) -> bytes:
    """The content of a file, at most `most` bytes. Raises OSError as `open_file` does."""
    fd = open_file(path, writable=False)
    try:
        return read_at(fd, most, 0)
    finally:
        os.close(fd)


def tells_pages(path: Path) -> bool:
    """Whether Linux tells this process which pages of the file are in memory (mincore): if it owns
    the file or may write it. Of others it says that all are there."""
    return path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK)


def read_at(fd: int, n_bytes: int, offset: int) -> bytes:
    """`n_bytes` from `offset`, fewer if the file ends before."""
    parts = []
    n_bytes = min(n_bytes, os.fstat(fd).st_size - offset)  # for which memory is taken
    while n_bytes > 0 and (part := os.pread(fd, n_bytes, offset)):
        parts.append(part)
        n_bytes -= len(part)
        offset += len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def write_at(fd: int, data: Data, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data).cast("B")
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


@contextmanager
def synced(path: Path) -> Iterator[int]:
    """A descriptor of a file, which is made if it is missing, and synced when the block ends."""
    fd = open_file(path, writable=True)
    try:
        yield fd
        sync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: Data) -> None:
    """Write a file, which is made if it is missing, and sync it."""
    with synced(path) as fd:
        write_at(fd, data, 0)


def make_room(fd: int, n_bytes: int, offset: int) -> None:
    """Reserve disk space for `n_bytes` at `offset`: OSError now, not in the middle of a write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, n_bytes)
    elif os.fstat(fd).st_size < offset + n_bytes:  # macOS
        os.ftruncate(fd, offset + n_bytes)


def sync(fd: int) -> None:
    """Wait until what was written has reached the medium."""
    getattr(os, "fdatasync", os.fsync)(fd)


@contextmanager
def replacing(path: Path) -> Iterator[int]:
    """A descriptor of a new file, which takes the name `path` when the block ends.

    After a crash there is the whole old file or the whole new one. Raises what `new_file` raises.
    """
    with new_file(path, mode_in(path.parent)) as part:
        fd = open_file(part, writable=True)
        try:
            yield fd
        finally:
            os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a file by `data`: after a crash it has all of the old or the new."""
    with replacing(path) as fd:
        write_at(fd, data, 0)


def remove(path: Path) -> None:
    """Remove the file, if it is there."""
    path.unlink(missing_ok=True)
