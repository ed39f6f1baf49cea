"""The system calls that make a pack: whole reads and writes, room, syncing, replacing.

Everything that must survive a crash goes through here, so that tests can break every call of it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import xxhash

Data = bytes | memoryview

DIGEST = 8
"""Bytes of a digest (XXH3, 64 bits): finds damage, not forgery."""


def digest(data: Data, chain: bytes = b"") -> bytes:
    """The digest of `data` after what `chain` is the digest of."""
    state = xxhash.xxh3_64(chain)
    state.update(data)
    return state.digest()


def open_file(path: Path, writable: bool) -> int:
    """A descriptor of the regular file, made where it is missing and may be written.

    Raises OSError; a pipe or a device in its place is one too, and never waited for.
    """
    flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
    fd = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, "not a regular file", str(path))
    return fd


def read_at(fd: int, n_bytes: int, offset: int) -> bytes:
    """`n_bytes` from `offset`, fewer where the file ends before."""
    parts = []
    while n_bytes and (part := os.pread(fd, n_bytes, offset)):
        parts.append(part)
        n_bytes -= len(part)
        offset += len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def write_at(fd: int, data: Data, offset: int) -> None:
    """All of `data` at `offset`."""
    view = memoryview(data).cast("B")
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def make_room(fd: int, n_bytes: int, offset: int) -> None:
    """Disk space for `n_bytes` at `offset`, or OSError now instead of in the middle of a write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, n_bytes)
    elif os.fstat(fd).st_size < offset + n_bytes:  # macOS
        os.ftruncate(fd, offset + n_bytes)


def sync(fd: int) -> None:
    """What was written reaches the medium before this returns."""
    getattr(os, "fdatasync", os.fsync)(fd)


def sync_folder(path: Path) -> None:
    """Names that were made in, moved into or removed from the folder are lasting."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes) -> None:
    """The file holds `data`, whole: after a crash either the old content or the new."""
    aside = path.with_name(path.name + ".new")
    fd = open_file(aside, writable=True)
    try:
        os.ftruncate(fd, 0)
        write_at(fd, data, 0)
        sync(fd)
    finally:
        os.close(fd)
    aside.replace(path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """The file is gone, if it was there."""
    path.unlink(missing_ok=True)
