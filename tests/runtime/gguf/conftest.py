"""Files of bytes that a test made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes bytes to a file and gives its path."""

    def write(data: bytes) -> Path:
        path = tmp_path / "made.gguf"
        path.write_bytes(data)
        return path

    return write
