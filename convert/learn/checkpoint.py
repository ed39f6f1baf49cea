"""The state of an interrupted training run, on disk.

A NumPy archive of arrays without pickles, so that reading it runs no code:

    about             a string of JSON: the settings, the model and the text
    done              chunks that have been learned from
    LAYER.NAME        the arrays of `Student.state` of each layer

Only a file that this user wrote is resumed from, and only that one is replaced or removed.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...system.files import check_target, open_regular, write_file
from .settings import LearnError


@dataclass(frozen=True)
class State:
    """The content of a checkpoint; `layers` by their number."""

    about: dict[str, Any]
    done: int
    layers: dict[int, dict[str, NDArray[Any]]]


class Checkpoint:
    """The file of one run. This process recognises it by its device, inode and time of change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> State | None:
        """The state in the file; None where there is none.

        Raises `LearnError` for a file of another user or of something else, `FileRefused` for what
        is no regular file; OSError.
        """
        check_target(self.path)
        try:
            fd = open_regular(self.path)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid != os.getuid():
                raise LearnError(
                    f"{self.path} belongs to another user: learning goes on only from your own "
                    "checkpoints; write to another --output"
                )
            data = file.read()
        try:
            state = _state(data)
        except Exception as error:  # whatever a damaged archive makes NumPy raise
            raise self.damaged(error) from error
        self._seen = _identity_of(status)
        return state

    def damaged(self, error: Exception) -> LearnError:
        """The error for a file that holds no sound state."""
        return LearnError(
            f"{self.path}: found a file that is not a checkpoint of `kvarn learn` "
            f"({type(error).__name__}): remove it to begin anew"
        )

    def write(self, state: State) -> None:
        """Write it, whole or not at all. Raises `LearnError` where another file has taken its
        place, `FileRefused` where that is no regular one; OSError."""
        if self._identity() not in (None, self._seen):
            raise LearnError(
                f"{self.path} has been replaced by another file: is a second `kvarn learn` writing "
                "to the same --output?"
            )
        arrays: dict[str, Any] = {"about": np.array(json.dumps(state.about)), "done": state.done}
        for number, layer in state.layers.items():
            arrays.update({f"{number}.{name}": array for name, array in layer.items()})
        memory = io.BytesIO()
        np.savez(memory, **arrays)
        write_file(self.path, memory.getbuffer())
        self._seen = self._identity()

    def remove(self) -> None:
        """Remove the file, if it is still the one that this process wrote last."""
        if self._seen is not None and self._identity() == self._seen:
            self.path.unlink()

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            return _identity_of(self.path.lstat())
        except FileNotFoundError:
            return None


def _identity_of(status: os.stat_result) -> tuple[int, int, int]:
    """The identity of a file; an inode number alone may be reused."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _state(data: bytes) -> State:
    with zipfile.ZipFile(io.BytesIO(data)) as members:
        if sum(member.file_size for member in members.infolist()) > len(data):
            raise ValueError("compressed")  # as no checkpoint is
    arrays: Mapping[str, NDArray[Any]] = dict(np.load(io.BytesIO(data), allow_pickle=False))
    layers: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        number, dot, rest = name.partition(".")
        if dot:
            layers.setdefault(int(number), {})[rest] = array
    return State(dict(json.loads(str(arrays["about"]))), int(arrays["done"]), layers)
