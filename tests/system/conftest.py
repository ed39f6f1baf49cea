"""A folder that everybody can reach, for the tests of what others can do to its owner's files."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder of one's own in one that everybody can reach, /tmp being root's and sticky."""
    folder = Path(tempfile.mkdtemp(dir="/tmp")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
