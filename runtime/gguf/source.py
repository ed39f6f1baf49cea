"""A mapped file, and a cursor that never reads past its end."""

from __future__ import annotations

import mmap
import os
import shlex
import stat
import struct
import sys
from os import PathLike
from pathlib import Path

import numpy as np

from ...system.errors import NO_SUCH_FILE, KvarnError, no_such_file
from ...system.text import one_line, shown
from .layout import MAGIC, MAX_ARRAY_BYTES, MAX_ITEMS, MIN_FILE_BYTES, U32, U64, VERSIONS

_OTHER_MAGICS = {
    b"lmgg": "a GGML file from before GGUF",
    b"tjgg": "a GGJT file from before GGUF",
    b"fmgg": "a GGMF file from before GGUF",
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint",
    b"vers": "a Git LFS pointer: fetch the file itself with `git lfs pull`",
    b"<!DO": "a web page: download the file itself",
    b"<htm": "a web page: download the file itself",
}
_PAGES_AT_ONCE = 1 << 14
TRUNCATED = "damaged or cut short: download it again"


class GGUFError(KvarnError):
    """`path`: `field`: found `found`, expected `expected` (`hint`: what to do, if anything).
    The field "file" stands for all of it, and is not in the message.

    The first four are attributes, so that a program can tell one fault from another.
    """

    def __init__(
        self, path: str | PathLike[str], field: str, found: str, expected: str, hint: str = ""
    ) -> None:
        self.path = str(path)
        self.field = field
        self.found = found
        self.expected = expected
        ending = f" ({hint})" if hint else ""
        where = one_line(str(path)) if field == "file" else f"{one_line(str(path))}: {field}"
        message = f"{where}: found {found}, expected {expected}{ending}"
        missing = no_such_file(where, f"expected {expected}")
        super().__init__(missing if found == NO_SUCH_FILE else message)


class Source:
    """A regular file, mapped read-only. Arrays made of `view` keep the mapping after `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = _regular_file_size(path)
        self._view: memoryview | None = None
        try:
            with path.open("rb") as file:
                # It may have shrunk since its size was read.
                if os.fstat(file.fileno()).st_size < self.size:
                    raise self.error("size", "a file that is shrinking", "a finished file")
                mapped = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise GGUFError(path, "file", _reason(error), "a file that can be read") from error
        self._view = memoryview(mapped)

    @property
    def view(self) -> memoryview:
        """All bytes of the file; GGUFError after `close`."""
        if self._view is None:
            raise self.error("file", "a closed file", "an open one", "open it again")
        return self._view

    def release(self, start: int, n_bytes: int) -> None:
        """Drop the pages of these bytes from memory; the next read loads them again."""
        mapped = self.view.obj
        if sys.platform != "win32" and isinstance(mapped, mmap.mmap):
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, first, start + n_bytes - first)

    def touch(self) -> None:
        """Load every page into memory. NumPy reads without holding the interpreter's lock."""
        pages = np.frombuffer(self.view, np.uint8)[:: mmap.PAGESIZE]
        for start in range(0, len(pages), _PAGES_AT_ONCE):
            pages[start : start + _PAGES_AT_ONCE].max()

    def close(self) -> None:
        """Release the mapping; it ends with the last array made of it."""
        self._view = None

    def error(self, field: str, found: str, expected: str, hint: str = "") -> GGUFError:
        """A GGUFError about this file."""
        return GGUFError(self.path, field, found, expected, hint)


class Cursor:
    """Reads a GGUF header from front to back; every failure names the field."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.view = source.view
        self.size = source.size
        self.position = 0
        self.items_left = MAX_ITEMS
        self.array_bytes_left = MAX_ARRAY_BYTES
        self.version = self._start()
        self._count = U32 if self.version == 1 else U64

    def _start(self) -> int:
        magic = bytes(self.view[:4])
        if magic != MAGIC:
            hint = _OTHER_MAGICS.get(magic, "not a GGUF file")
            raise self.source.error("magic", shown(magic), "b'GGUF'", hint)
        self.position = 4
        version = self.u32("version")
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise self.source.error(
                "byte order",
                "a big-endian file",
                "a little-endian one",
                "convert it with `gguf-convert-endian FILE little`",
            )
        hint = "a newer kvarn may read it" if 3 < version < 100 else ""
        raise self.source.error("version", str(version), "1, 2 or 3", hint)

    @property
    def count_bytes(self) -> int:
        """Bytes of a count; every string begins with one."""
        return self._count.size

    def u32(self, field: str) -> int:
        return self._number(U32, field)

    def u64(self, field: str) -> int:
        return self._number(U64, field)

    def size_t(self, field: str) -> int:
        """A count of anything, as wide as this version's counts, unchecked."""
        return self._number(self._count, field)

    def count(self, field: str, item_bytes: int, limit: int | None = None) -> int:
        """A number of items of at least `item_bytes` each; GGUFError if the file is too short."""
        n = self._number(self._count, field)
        room = (self.size - self.position) // max(item_bytes, 1)
        if n > room:
            raise self.source.error(
                field, f"{n:,}", f"at most {room:,}, for which the file has room", TRUNCATED
            )
        if limit is not None and n > limit:
            raise self.source.error(field, f"{n:,}", f"at most {limit:,}")
        return n

    def items(self, n: int, field: str) -> None:
        """Count `n` items, which are read one by one, against the limit for the file."""
        self.items_left -= n
        if self.items_left < 0:
            raise self.source.error(
                field, f"over {MAX_ITEMS:,} strings and arrays in the metadata", f"{MAX_ITEMS:,}"
            )

    def array(self, n_bytes: int, field: str) -> None:
        """Count the bytes of an array against the limit for the file."""
        self.array_bytes_left -= n_bytes
        if self.array_bytes_left < 0:
            raise self.source.error(
                field,
                f"over {MAX_ARRAY_BYTES:,} bytes of arrays in the metadata",
                f"at most {MAX_ARRAY_BYTES:,}",
            )

    def name(self, field: str, limit: int) -> str:
        """A key or tensor name: at most `limit` bytes of UTF-8."""
        n = self.count(f"{field}: length", 1, limit)
        start = self.skip(n, field)
        data = bytes(self.view[start : start + n])
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.source.error(field, shown(data), "UTF-8") from None

    def skip(self, n: int, field: str) -> int:
        """Step over `n` bytes; return where they start."""
        start = self.position
        if n > self.size - start:
            raise self.source.error(
                field, f"{self.size - start:,} bytes before the end", f"{n:,}", TRUNCATED
            )
        self.position = start + n
        return start

    def _number(self, form: struct.Struct, field: str) -> int:
        start = self.skip(form.size, field)
        value: int = form.unpack_from(self.view, start)[0]
        return value


def _regular_file_size(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise GGUFError(path, "file", _reason(error), "a GGUF file", "check the path") from error
    if stat.S_ISDIR(status.st_mode):
        names = sorted(entry.name for entry in path.glob("*.gguf"))[:3]
        hint = f"it holds {', '.join(names)}" if names else "no .gguf file is in it"
        if not names and (path / "config.json").is_file():
            hint = f"`kvarn convert {shlex.quote(str(path))} OUT.gguf` makes one of it"
        raise GGUFError(path, "file", "a directory", "a GGUF file", hint)
    if not stat.S_ISREG(status.st_mode):
        raise GGUFError(path, "file", "a pipe or device", "a regular file", "copy it to a file")
    if status.st_size == 0:
        raise GGUFError(path, "size", "an empty file", "a GGUF file", "download it again")
    if status.st_size < MIN_FILE_BYTES:
        found = f"{status.st_size} bytes"
        raise GGUFError(path, "size", found, f"at least {MIN_FILE_BYTES}", "not a GGUF file")
    return status.st_size


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return NO_SUCH_FILE
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
