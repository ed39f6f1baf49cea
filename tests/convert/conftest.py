"""A hub, a home, and a folder with an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import hub_server
from .hub_server import Hub
from .stored_adapters import StoredAdapter


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub on the loopback, empty."""
    with hub_server.serve() as served:
        yield served


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, and an empty home."""
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a llama in hf/ and its adapter in a/."""
    stored = StoredAdapter.read("llama")
    stored.write_model(tmp_path / "hf")
    stored.write(tmp_path / "a")
    return tmp_path
