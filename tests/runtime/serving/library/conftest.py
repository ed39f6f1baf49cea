"""A library in an empty folder, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvarn.runtime.model import Model
from kvarn.runtime.serving.library import Library

Make = Callable[..., Library]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, model: Model, told: list[str]) -> Iterator[Make]:
    """Makes the library of a folder anew, as after a restart."""
    made: list[Library] = []

    def library(most_bytes: int = 1 << 30, of: Model | None = None) -> Library:
        for other in made:
            other.close()
        made.append(Library(of or model, tmp_path / "serve", most_bytes, told.append))
        return made[-1]

    yield library
    for library_ in made:
        library_.close()
