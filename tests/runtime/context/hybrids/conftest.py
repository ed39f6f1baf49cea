"""Models whose layers carry a state, and the ids that their contexts read."""

from __future__ import annotations

import pytest

import kvarn

from ....models import tiny_cases, tiny_models
from ...reading import ids_of
from .counting import N


@pytest.fixture(
    scope="module",
    params=["qwen35", "qwen3next", "lfm2", "granitehybrid", "nemotron_h", "falcon-h1"],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> kvarn.Model:
    (case,) = (case for case in tiny_cases.CASES if case.name == request.param)
    path = tmp_path_factory.mktemp("hybrid") / "model.gguf"
    tiny_models.write(path, case, 1)
    return kvarn.load(path)


@pytest.fixture(scope="module")
def ids(model: kvarn.Model) -> list[int]:
    return ids_of(model, N)
