"""Downloads a file from a hub: complete and as the hub lists it, or not at all.

A transfer that breaks off resumes where it stopped. Bytes are hashed as they arrive; the file gets
its name when its size and checksum are those that the hub lists.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from ...system.files import GGUF_MAGIC, new_file, open_regular
from ..errors import HubError, HubUnreachable
from .ask import STALL_BYTES, Answer, Notice, open_answer
from .choose import RepositoryFile
from .places import Folder

Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Called with the name of a file; gives a function of (bytes done, bytes to do)."""

MAX_ATTEMPTS = 6
"""Attempts in a row that bring no new bytes, with `WAITS` seconds between them."""
WAITS = (1.0, 2.0, 4.0, 8.0)
PART_BYTES = 32 << 30
"""Asked for at a time: the hub's servers refuse more than 50 GB in one answer."""
_CHUNK = 1 << 20


def fetch(
    repo: str, commit: str, file: RepositoryFile, place: Folder, notice: Notice, progress: Progress
) -> None:
    """Put `file` in its place and check it; download it unless it is there.

    Raises `HubError` where it is not what the hub lists: a new download is removed, a file that was
    there before stays; `HubUnreachable`; `FileRefused`.
    """
    with progress(file.name) as step:
        stored = place.stored(file)
        if stored is not None:
            check(repo, file, stored, step)
        else:
            with new_file(place.target(file)) as part, part.open("r+b") as out:
                Download(repo, commit, file, out, step).run(notice)
    place.publish(file)


def check(repo: str, file: RepositoryFile, path: Path, step: Callable[[int, int], None]) -> None:
    """`HubError` unless a stored file is the one that is listed."""
    n_bytes, hasher = 0, _hasher(file)
    with os.fdopen(open_regular(path), "rb") as stored:
        if os.fstat(stored.fileno()).st_size == file.n_bytes:
            while chunk := stored.read(_CHUNK):
                hasher.update(chunk)
                n_bytes += len(chunk)
                step(n_bytes, file.n_bytes)
    if n_bytes != file.n_bytes or hasher.hexdigest() != file.digest:
        raise HubError(
            f"{path} is another file than the {file.name} of {repo}: remove it, or move it away, "
            "and pull again"
        )


class Download:
    """A download into `out`: how many bytes are there, and their hash."""

    def __init__(
        self,
        repo: str,
        commit: str,
        file: RepositoryFile,
        out: BinaryIO,
        step: Callable[[int, int], None],
    ) -> None:
        self._repo, self._file, self._out, self._step = repo, file, out, step
        self._path = f"{repo}/resolve/{commit}/{quote(file.name)}"
        self._restart()

    def run(self, notice: Notice) -> None:
        """Download it all. Raises `HubError` where the file is not the one that is listed."""
        attempt, most = 0, 0
        while self._n_bytes < self._file.n_bytes:
            try:
                self._go_on(notice)
            except HubUnreachable:
                attempt += 1
                if self._n_bytes >= most + STALL_BYTES:
                    attempt, most = 1, self._n_bytes
                if attempt >= MAX_ATTEMPTS:
                    raise
                time.sleep(WAITS[min(attempt, len(WAITS)) - 1])
        if self._hasher.hexdigest() != self._file.digest:
            raise self._wrong("its checksum is not the one that is listed")
        self._out.flush()
        self._out.seek(0)
        if (
            self._file.name.lower().endswith(".gguf")
            and self._out.read(len(GGUF_MAGIC)) != GGUF_MAGIC
        ):
            raise self._wrong("it is not a GGUF file")

    def _go_on(self, notice: Notice) -> None:
        """Download the next part; an answer that ends too soon counts as broken off."""
        size, start = self._file.n_bytes, self._n_bytes
        stop = min(size, start + PART_BYTES)
        is_part = start > 0 or stop < size
        with open_answer(self._repo, self._path, notice, start, stop if is_part else 0) as answer:
            if answer.status == 200:  # the whole file, also where a part was asked for
                stop = size
                self._restart()
            elif _first_byte(answer) != start:
                raise self._wrong("another part of it comes than was asked for")
            length = answer.headers.get("Content-Length", "")
            if length.isdecimal() and int(length[:20]) != stop - self._n_bytes:
                raise self._wrong(f"{size} bytes are listed, {int(length[:20])} are to come")
            for chunk in answer.chunks():
                if len(chunk) > stop - self._n_bytes:
                    raise self._wrong(f"more comes than the {size} bytes that are listed")
                self._out.write(chunk)
                self._hasher.update(chunk)
                self._n_bytes += len(chunk)
                self._step(self._n_bytes, size)
                if self._n_bytes == stop:
                    return
        raise HubUnreachable(
            f"{self._file.name} of {self._repo} breaks off after {self._n_bytes} of {size} bytes: "
            "try again later"
        )

    def _restart(self) -> None:
        self._out.seek(0)
        self._out.truncate()
        self._n_bytes, self._hasher = 0, _hasher(self._file)

    def _wrong(self, fault: str) -> HubError:
        return HubError(
            f"what the hub sends as {self._file.name} of {self._repo} is not kept: {fault}"
        )


def _hasher(file: RepositoryFile) -> Any:
    """sha256 for large files; git's id for others."""
    if len(file.digest) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.n_bytes, usedforsecurity=False)


def _first_byte(answer: Answer) -> int | None:
    """The first byte of a part of a file, by its Content-Range."""
    match = re.match(r"bytes (\d{1,19})-", answer.headers.get("Content-Range", ""), re.ASCII)
    return int(match[1]) if match else None
