"""The file `answers`: what `answers.py` keeps, one record each, the newest last.

    record:  u32 n, number of ids  |  u32 end  |  u32 s, ids shared with the record before
             |  16 bytes digest of messages  |  (n - s) x u32 ids  |  8 bytes digest of all this

A record that is not sound ends the file: a killed process has left it. Losing the newest answers
costs no more than reading a part of a conversation again, so nothing waits for the medium.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....ops.arrays import U32
from ...store.disk import files
from ...store.disk.files import DIGEST
from .tree import n_equal

_HEAD = struct.Struct("<III16s")
_MOST_IDS = 1 << 28


@dataclass(frozen=True)
class Record:
    """The ids of a prompt and its answer, by the digest of their messages, and the token that ended
    the answer, or `answers.ANY_END`."""

    digest: bytes
    end: int
    ids: U32


class Journal:
    """Records in a file of at most `most_bytes` bytes; written without errors: where the disk is
    full, records are lost."""

    def __init__(self, file: Path, most_bytes: int) -> None:
        self._file, self._most_bytes = file, most_bytes
        self._last = np.empty(0, np.uint32)
        self.n_bytes = 0
        """Of the file."""

    def read(self) -> list[Record]:
        """All sound records, the oldest first."""
        try:
            data = files.read_file(self._file, self._most_bytes)
        except (OSError, ValueError):
            return []
        records: list[Record] = []
        while (record := self._decode(data)) is not None:
            records.append(record)
        return records

    def append(self, record: Record, all_records: Callable[[], list[Record]]) -> None:
        """Add a record; a file that would grow too large is replaced by the newest half of
        `all_records`, which have this one, too."""
        data = self._encode(record)
        with suppress(OSError):
            if self.n_bytes + len(data) > self._most_bytes:
                self._rewrite(all_records())
                return
            fd = files.open_file(self._file, writable=True)
            try:
                files.write_at(fd, data, self.n_bytes)
                os.ftruncate(fd, self.n_bytes + len(data))
            finally:
                os.close(fd)
            self._last, self.n_bytes = record.ids, self.n_bytes + len(data)

    def _rewrite(self, records: list[Record]) -> None:
        self._last, kept, n_bytes = np.empty(0, np.uint32), [], 0
        for record in reversed(records):
            n_bytes += _HEAD.size + 4 * len(record.ids) + DIGEST
            if n_bytes > self._most_bytes // 2:
                break
            kept.append(record)
        parts = []
        for record in reversed(kept):
            parts.append(self._encode(record))
            self._last = record.ids
        data = b"".join(parts)
        files.replace(self._file, data)
        self.n_bytes = len(data)

    def _encode(self, record: Record) -> bytes:
        n_shared, n = n_equal(record.ids, self._last), len(record.ids)
        head = _HEAD.pack(n, record.end, n_shared, record.digest)
        body = head + record.ids[n_shared:].astype("<u4").tobytes()
        return body + files.digest(body)

    def _decode(self, data: bytes) -> Record | None:
        """The record after those that were read; None if there is none."""
        start = self.n_bytes
        if start + _HEAD.size > len(data):
            return None
        n, end, n_shared, digest = _HEAD.unpack_from(data, start)
        if not n_shared <= min(n, len(self._last)) or n > _MOST_IDS:
            return None
        stop = start + _HEAD.size + 4 * (n - n_shared)
        if data[stop : stop + DIGEST] != files.digest(data[start:stop]):
            return None
        rest = np.frombuffer(data[start + _HEAD.size : stop], "<u4").astype(np.uint32)
        self._last, self.n_bytes = np.concatenate([self._last[:n_shared], rest]), stop + DIGEST
        return Record(digest, end, self._last)
