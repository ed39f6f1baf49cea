"""What writers of GGUF files share: room on the disk, and alignment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import BinaryIO

from ..runtime.gguf.layout import DEFAULT_ALIGNMENT
from ..runtime.memory import human_bytes
from .errors import ConvertError


def check_room(folder: Path, n_bytes: int, what: str) -> None:
    """`ConvertError` where a disk has no room for `n_bytes`."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise ConvertError(
            f"{what} needs {human_bytes(n_bytes)} and {folder} has {human_bytes(free)} free"
        )


def pad(file: BinaryIO) -> None:
    """Write zeros up to where the next tensor may begin."""
    file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))
