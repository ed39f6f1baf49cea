"""Fresh tiny models through llama.cpp itself, where llama-cpp-python is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvarn.models import ARCHITECTURES, ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf

from . import tiny_cases, tiny_models
from .tiny.case import Tiny

# A seed that no golden file was chosen for.
SEED = 4321
FIRST_OF_EACH = [
    next(case for case in tiny_cases.CASES if case.architecture == name) for name in ARCHITECTURES
]


@pytest.mark.parametrize("case", FIRST_OF_EACH, ids=lambda case: case.name)
def test_logits_are_llama_cpps(
    case: Tiny,
    llama_oracle: ModuleType,
    plain_ops: ModuleType,
    tmp_path: Path,
) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_models.write(path, case, SEED)
    ids = tiny_models.prompt(case, SEED)
    with llama_oracle.oracle(path, case.n_ctx, case.n_vocab) as oracle:
        expected = oracle.forward(ids)
    with open_gguf(path) as file:
        config = ModelConfig.from_metadata(file.metadata)
        model = Transformer(config, Weights.load(file.tensors, config), 64)
        attention = plain_ops.PlainAttention(config)
        attention.sinks = model.weights.sink_logits
        hidden = model.forward(np.array(ids, np.int32), 0, attention, case.n_ctx)
        logits = np.empty_like(expected)
        model.logits(hidden, logits)
    limit = 5e-3 if case.gelu else 2e-4  # as in test_golden
    assert np.abs(logits - expected).max() < limit * expected.std()


def test_the_golden_files_are_what_llama_cpp_says(
    llama_oracle: ModuleType, golden_models: Callable[[str], Any]
) -> None:
    golden = golden_models("llama-odd")
    with llama_oracle.oracle(golden.path(), golden.case.n_ctx, golden.case.n_vocab) as oracle:
        ids, logits = oracle.greedy(golden.prompt, len(golden.ids))
    assert ids == golden.ids
    np.testing.assert_allclose(logits[golden.steps], golden.logits, atol=1e-3)
