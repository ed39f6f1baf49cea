"""Every architecture against llama.cpp: tiny random models, and trained ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf

from .tiny_cases import CASES

NAMES = [case.name for case in CASES]
# Errors in units of the logits' standard deviation. Both sides run in float32, whose rounding grows
# through layers and positions: 5e-5 measured at most. Where gelu comes from ggml's float16 table an
# input at the edge of two entries falls on either side: 7e-4 measured, 2e-3 after 46 layers.
TOLERANCE = 2e-4
GELU_TOLERANCE = {"gemma2-46": 1e-2}
GELU_DEFAULT = 2e-3


def tolerance(golden: Any) -> float:
    """The tolerance of one model's logits."""
    if not golden.case.gelu:
        return TOLERANCE
    return GELU_TOLERANCE.get(golden.case.name, GELU_DEFAULT)


@pytest.mark.parametrize("name", NAMES)
def test_plain_operations_give_llama_cpps_ids(
    name: str, golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models(name)
    ids, error = plain_ops.greedy_of(golden)
    assert ids == golden.ids
    assert error < tolerance(golden)


@pytest.mark.data
@pytest.mark.parametrize("name", ["stories260K", "babyllama-tok105"])
def test_plain_operations_give_a_trained_models_ids(
    name: str, data_dir: Path, plain_ops: ModuleType
) -> None:
    folder = data_dir / "weights" / name
    golden = json.loads((folder / "golden-greedy.json").read_text())
    with open_gguf(folder / f"{name}-f32.gguf") as file:
        config = ModelConfig.from_metadata(file.metadata)
        model = Transformer(config, Weights.load(file.tensors, config), 512)
        prompt, n = golden["prompt_ids"], len(golden["ids"]) - len(golden["prompt_ids"])
        attention = plain_ops.PlainAttention(config)
        ids, logits = plain_ops.greedy(model, attention, prompt, n, 256)
    assert prompt + ids == golden["ids"]
    for position, expected in golden["full_logits"].items():
        row = int(position) - len(prompt) + 1
        if 0 <= row < n:
            # 1e-3 is what the golden file's authors measured for float32 against their float64.
            np.testing.assert_allclose(logits[row], expected, atol=1e-3)
