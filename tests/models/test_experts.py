"""Layers with routed experts: which rows of a pass choose some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights

from . import plain

NAMES = ["qwen3moe", "gpt-oss", "gemma4-experts", "laguna", "qwen35moe"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 3, 7, 8])
def test_rows_that_only_fill_up_a_pass_choose_no_experts(
    name: str, n: int, golden_models: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of a prompt have the bits that they have among more."""
    golden = golden_models(name)
    config = ModelConfig.from_metadata(golden.metadata)
    model = Transformer(config, Weights.load(plain.as_tensors(golden.arrays), config), 64)
    ids, counts = np.array(golden.prompt[:16], np.int32), []

    def read(n: int) -> np.ndarray:
        attention = plain.PlainAttention(config)
        attention.sinks = model.weights.sink_logits
        return model.forward(ids[:n], 0, attention, prompt=True).copy()

    whole = read(16)
    experts = type(model.device).experts.func(model.device)

    def counted(act: Any, logits: np.ndarray, *rest: Any, **options: Any) -> None:
        counts.append(len(logits))
        experts(act, logits, *rest, **options)

    monkeypatch.setitem(model.device.__dict__, "experts", counted)
    np.testing.assert_array_equal(read(n), whole[:n])
    assert counts and set(counts) == {n}
