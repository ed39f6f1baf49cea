"""Tiny GGUF files, good and bad."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def _helper(name: str) -> ModuleType:
    """A helper module beside this file, imported under its own name."""
    if name not in sys.modules:
        path = Path(__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


_helper("gguf_bytes")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    """Writes bytes to a file and gives its path."""

    def write(data: bytes) -> Path:
        path = tmp_path / "made.gguf"
        path.write_bytes(data)
        return path

    return write
