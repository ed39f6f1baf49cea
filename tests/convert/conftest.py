"""Helpers of these tests under their own names: a hub, vocabularies, tiny models, the oracles."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hub_server import Hub

HERE = Path(__file__).parent
MODELS = HERE.parent / "models"


def _helper(name: str, folder: Path = HERE) -> ModuleType:
    """A helper module, imported under its own name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


vocabularies = _helper("vocabularies")
hf_models = _helper("hf_models")
hf_folders = _helper("hf_folders")
hub_server = _helper("hub_server")
hostile_hub = _helper("hostile_hub")
hostile_cases = _helper("hostile_cases")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub on the loopback, empty."""
    with hub_server.serve() as served:
        yield served


@pytest.fixture
def plain_ops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run models on plain NumPy instead of the kernels; gives the module of helpers."""
    plain = _helper("plain", MODELS)
    plain.use_plain_ops(monkeypatch)
    return plain


@pytest.fixture(scope="session")
def llama_oracle() -> ModuleType:
    """llama.cpp, live; skips where llama-cpp-python is not installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    return _helper("llama_oracle", MODELS)
