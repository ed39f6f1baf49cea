"""The files of a pack's folder, each opened once, and the slots in them."""

from __future__ import annotations

import os
from pathlib import Path

from . import files
from .errors import PackDamaged


class PackFiles:
    """The files of a folder, whatever is in them."""

    def __init__(self, path: Path, writable: bool) -> None:
        self.path, self.writable = path, writable
        self.n_written = 0  # bytes, by `write_at`
        self._fds: dict[str, int] = {}

    def fd(self, name: str) -> int:
        """A descriptor of one of the pack's files; a writer makes the file if it is missing."""
        if name not in self._fds:
            self._fds[name] = self._opened(name)
        return self._fds[name]

    def _opened(self, name: str) -> int:
        try:
            return files.open_file(self.path / name, self.writable)
        except FileNotFoundError as error:
            raise PackDamaged(self.path, f"its file {name} is missing") from error

    def read(self, name: str, n_bytes: int, *, anew: bool = False) -> bytes:
        """The first `n_bytes` of a file, or of what has its name now (`anew`); `PackDamaged` if it
        has fewer."""
        if not n_bytes:
            return b""
        fd = self._opened(name) if anew else self.fd(name)
        try:
            size = os.fstat(fd).st_size
            data = files.read_at(fd, n_bytes, 0) if size >= n_bytes else b""
        finally:
            if anew:
                os.close(fd)
        if len(data) < n_bytes:
            raise PackDamaged(
                self.path, f"{name} is cut short: {size:,} bytes, expected {n_bytes:,}"
            )
        return data

    def read_slot(self, name: str, slot: int, n_bytes: int, digest: bytes, stride: int) -> bytes:
        """The first `n_bytes` of a slot of a file; `PackDamaged` if they are not as written."""
        try:
            data = files.read_at(self.fd(name), n_bytes, slot * stride)
        except OSError as error:
            reason = f"{name} cannot be read: {error.strerror or error}"
            raise PackDamaged(self.path, reason) from error
        if len(data) < n_bytes or files.digest(data) != digest:
            damage = "is cut short" if len(data) < n_bytes else "is damaged"
            raise PackDamaged(self.path, f"{name} {damage} in slot {slot}")
        return data

    def write_at(self, name: str, data: files.Data, offset: int) -> None:
        """Write all of `data` at `offset` of one of the pack's files, which is not synced."""
        files.write_at(self.fd(name), data, offset)
        self.n_written += memoryview(data).nbytes

    def write_slot(self, name: str, slot: int, data: memoryview, stride: int) -> bytes:
        """Write `data` to a slot of a file, which is not synced; returns its digest."""
        files.make_room(self.fd(name), stride, slot * stride)
        self.write_at(name, data, slot * stride)
        return files.digest(data)

    def sync(self, name: str) -> None:
        """Wait until a file, which may be new, has reached the medium."""
        files.sync(self.fd(name))
        files.sync_folder(self.path)

    def forget(self, name: str) -> None:
        """Close the file and remove it."""
        if name in self._fds:
            os.close(self._fds.pop(name))
        files.remove(self.path / name)

    def close(self) -> None:
        """Close the files; what is mapped stays mapped."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
