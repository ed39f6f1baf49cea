"""An empty pack; helpers stand in `packs.py` and `medium.py`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from packs import make


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """The folder of a fresh pack."""
    path = tmp_path / "pack"
    make(path)
    return path
