"""Golden ids of llama.cpp, tiny vocabularies, and llama.cpp itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def _helper(name: str) -> ModuleType:
    """A helper module beside this file, imported under its own name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """golden.json: vocabularies, texts and the ids that llama.cpp gives (see make_golden.py)."""
    loaded: dict[str, Any] = json.loads((HERE / "golden.json").read_text())
    return loaded


@pytest.fixture(scope="session")
def tiny_vocabs() -> ModuleType:
    """The module that makes vocabularies and texts."""
    return _helper("tiny_vocabs")


@pytest.fixture(scope="session")
def llama_vocab() -> ModuleType:
    """The module that asks llama.cpp; skips where llama-cpp-python is not installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    return _helper("llama_vocab")
