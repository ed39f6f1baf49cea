"""An empty pack."""

from pathlib import Path

import pytest

from .packs import make


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """The folder of a fresh pack."""
    path = tmp_path / "pack"
    make(path)
    return path
