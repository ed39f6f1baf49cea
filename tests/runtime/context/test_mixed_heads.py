"""Contexts of models whose layers differ in their heads, or read keys and values of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.models.config import ModelConfig
from kvarn.models.layer import Layer

from ...models import tiny_cases, tiny_models
from ..reading import ids_of

NEXT = [5, 9, 11, 4]


def written(name: str, folder: Path) -> kvarn.Model:
    (case,) = (case for case in tiny_cases.CASES if case.name == name)
    tiny_models.write(folder / "model.gguf", case, 1)
    return kvarn.load(folder / "model.gguf")


def decoded(context: kvarn.Context, tokens: list[int] = NEXT) -> list[np.ndarray]:
    return [context.decode(token).copy() for token in tokens]


@pytest.mark.parametrize("n", [40, 512])
def test_rows_that_nobody_needs_are_not_computed(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last layer that stores keys and values; what is wanted keeps its bits."""
    model = written("gemma4-shared", tmp_path)
    ids, rows, known = np.array(ids_of(model, n), np.int32), [], Layer.finish

    def finish(layer: Layer, b: Any) -> None:
        rows.append(len(b.ids))
        known(layer, b)

    monkeypatch.setattr(Layer, "finish", finish)

    def read() -> list[np.ndarray]:
        with model.context(1024) as context:
            return [context.prefill(ids.tolist()).copy(), *decoded(context)]

    got = read()
    least = model.transformer.device.least_rows
    assert rows[:6] == [n] * 3 + [least] * 3
    monkeypatch.setattr(ModelConfig, "last_storing", 5)
    vars(model.config).pop("last_storing", None)
    rows.clear()
    want = read()
    assert rows[:6] == [n] * 5 + [least]
    np.testing.assert_array_equal(got, want)
