"""Scans after prompts of any length, on the kernels, against llama.cpp: logits and greedy ids.

`golden/lengths.npz` is made by `python -m tests.models.golden lengths`.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights

from . import plain, tiny_models
from .tiny_lengths import LENGTHS, NAMES, SEED, case_of, ids, kept, keys

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> tuple[str, Transformer]:
    """A name, and its model with chunks of 512 tokens."""
    case = case_of(request.param)
    config = ModelConfig.from_metadata(tiny_models.metadata(case))
    weights = Weights.load(plain.as_tensors(tiny_models.tensors(case, SEED)), config)
    return request.param, Transformer(config, weights, 512)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "golden" / "lengths.npz") as stored:
        return dict(stored)


def run(model: Transformer, prompt: list[int], forced: list[int]) -> np.ndarray:
    """The logits after the prompt, and after each of the forced ids but the last."""
    attention, n = plain.PlainAttention(model.config), len(prompt)
    rows = [plain.read(model, attention, prompt, 512)[-1]]
    for i, token in enumerate(forced[:-1]):
        hidden = model.forward(np.array([token], np.int32), n + i, attention)
        rows.append(np.empty(model.config.n_vocab, np.float32))
        model.logits(hidden, rows[-1].reshape(1, -1))
    return np.array(rows)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_and_greedy_ids_are_llama_cpps(
    length: int, model: tuple[str, Transformer], golden: dict[str, np.ndarray]
) -> None:
    name, transformer = model
    expected_ids, expected = (golden[key] for key in keys(name, length))
    logits = run(transformer, ids(case_of(name), length), expected_ids.tolist())
    assert np.abs(logits[[0, -1]] - expected).max() < 1e-4 * np.abs(expected).max()
    np.testing.assert_array_equal(logits.argmax(1), expected_ids)


def test_the_golden_file_is_what_llama_cpp_says(
    model: tuple[str, Transformer],
    golden: dict[str, np.ndarray],
    llama_oracle: ModuleType,
    tmp_path: Path,
) -> None:
    name, _ = model
    case = case_of(name)
    tiny_models.write(tmp_path / "tiny.gguf", case, SEED)
    for length in LENGTHS:
        with llama_oracle.oracle(tmp_path / "tiny.gguf", case.n_ctx, case.n_vocab) as oracle:
            greedy, logits = kept(oracle, case, length)
        expected_ids, expected = (golden[key] for key in keys(name, length))
        assert greedy == expected_ids.tolist()
        np.testing.assert_allclose(logits, expected, atol=1e-3)
