"""Tiny models with golden results of llama.cpp, and what runs them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
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


tiny_models = _helper("tiny_models")
plain = _helper("plain")
_helper("tiny_quants")


@dataclass(frozen=True)
class Golden:
    """One tiny model and what llama.cpp makes of its prompt."""

    case: Any
    seed: int
    prompt: list[int]
    ids: list[int]
    """Greedy ids after the prompt."""
    steps: list[int]
    logits: np.ndarray
    """Logits, float32 (len(steps), V), from which ids[step] was chosen."""
    folder: Path

    @property
    def metadata(self) -> dict[str, Any]:
        """The model's metadata."""
        return tiny_models.metadata(self.case)  # type: ignore[no-any-return]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The model's tensors."""
        return tiny_models.tensors(self.case, self.seed)  # type: ignore[no-any-return]

    def path(self) -> Path:
        """The model as a GGUF file, written when first asked for."""
        path = self.folder / f"{self.case.name}.gguf"
        if not path.exists():
            tiny_models.write(path, self.case, self.seed)
        return path


@pytest.fixture(scope="session")
def golden_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Golden]:
    """name → Golden, for every name in `tiny_models.CASES`."""
    folder = tmp_path_factory.mktemp("tiny")
    cases = {case.name: case for case in tiny_models.CASES}

    def load(name: str) -> Golden:
        with np.load(HERE / "golden" / f"{name}.npz") as stored:
            seed = int(stored["seed"])
            return Golden(
                case=cases[name],
                seed=seed,
                prompt=tiny_models.prompt(cases[name], seed),
                ids=stored["ids"].tolist(),
                steps=stored["steps"].tolist(),
                logits=stored["logits"],
                folder=folder,
            )

    return load


@pytest.fixture
def plain_ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Run models on plain NumPy instead of the kernels; gives the module of helpers."""
    plain.use_plain_ops(monkeypatch)
    yield plain


@pytest.fixture(scope="session")
def plain_helpers() -> ModuleType:
    """The module of plain operations, put in nobody's place."""
    return plain


@pytest.fixture(scope="session")
def llama_oracle() -> ModuleType:
    """llama.cpp, live; skips where llama-cpp-python is not installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    return _helper("llama_oracle")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Kernels on one thread: models this small spend their time waiting for the others."""
    from kvarn.jit.threads import n_threads, set_threads
    from kvarn.runtime.engine import on_engine

    here, engine = n_threads(), on_engine(n_threads)
    set_threads(1)
    on_engine(set_threads, 1)
    yield
    on_engine(set_threads, engine)
    set_threads(here)
