"""Tiny models with golden results of llama.cpp, and what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import tiny_cases, tiny_models
from .tiny.case import Tiny

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    """One tiny model and what llama.cpp makes of its prompt."""

    case: Tiny
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
        return tiny_models.metadata(self.case)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The model's tensors."""
        return tiny_models.tensors(self.case, self.seed)

    def path(self) -> Path:
        """The model as a GGUF file, written when first asked for."""
        path = self.folder / f"{self.case.name}.gguf"
        if not path.exists():
            tiny_models.write(path, self.case, self.seed)
        return path


@pytest.fixture(scope="session")
def golden_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Golden]:
    """name → Golden, for every name in `tiny_cases.CASES`."""
    folder = tmp_path_factory.mktemp("tiny")
    cases = {case.name: case for case in tiny_cases.CASES}

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
