"""Runs commands about packs on the tiny model, in a home of their own."""

import struct
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


@pytest.fixture
def trained_on_64(tiny_path: Path, tmp_path: Path) -> Path:
    """The tiny model, whose file says another training length."""
    key, data = b"llama.context_length" + struct.pack("<I", 4), tiny_path.read_bytes()
    changed = data.replace(key + struct.pack("<I", 131_072), key + struct.pack("<I", 64))
    assert changed != data
    path = tmp_path / "short.gguf"
    path.write_bytes(changed)
    return path
