"""Runs commands about packs on the tiny model, in a home of their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.peers.model import write_model

from ..conftest import TINY
from .pack_runner import TEXT, Kvarn


@pytest.fixture
def run(
    tiny_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Kvarn:
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    return Kvarn(tiny_path, text, capsys)


@pytest.fixture
def trained_on_64(tmp_path: Path) -> Path:
    """The tiny model, whose file says another training length."""
    path = tmp_path / "short.gguf"
    write_model(path, "f16", replace(TINY, n_ctx=64))
    return path
