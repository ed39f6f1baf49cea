"""Golden ids of llama.cpp, and llama.cpp itself where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """golden.json: vocabularies, texts and the ids that llama.cpp gives (see make_golden.py)."""
    loaded: dict[str, Any] = json.loads((HERE / "golden.json").read_text())
    return loaded


@pytest.fixture(scope="session")
def llama_vocab() -> ModuleType:
    """The module that asks llama.cpp; skips where llama-cpp-python is not installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from . import llama_vocab

    return llama_vocab
