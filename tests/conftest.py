"""Fixtures that every room's tests share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real models, vocabularies and texts; skips where there is none."""
    folder = Path(os.environ.get("KVARN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}: set KVARN_TEST_DATA")
    return folder
