"""Runs commands about packs on the tiny model, in a home of their own."""

from pathlib import Path

import pytest

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
