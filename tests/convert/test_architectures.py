"""Every architecture: transformers, kvarn and llama.cpp say the same of the same weights."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import hf_models, vocabularies

torch = pytest.importorskip("torch", reason="the oracle, torch, is absent")
pytest.importorskip("transformers", reason="the oracle, transformers, is absent")

from kvarn.convert.hf import convert  # noqa: E402
from kvarn.convert.hf.table import HF_ARCHITECTURES  # noqa: E402
from kvarn.convert.quantize.mixes import MIXES  # noqa: E402
from kvarn.models import ModelConfig  # noqa: E402
from kvarn.models.config.architectures import ARCHITECTURES  # noqa: E402
from kvarn.models.passes.transformer import Transformer  # noqa: E402
from kvarn.models.weights import Weights  # noqa: E402
from kvarn.runtime.gguf import open_gguf  # noqa: E402

N_CTX = 256
# Beyond every window of the tiny models, and beyond the original context of LongRoPE (64).
IDS = [1, *np.random.default_rng(5).integers(3, 300, 71).tolist()]
N_GREEDY = 8


def test_there_is_a_case_for_every_architecture_of_the_runtime() -> None:
    converted = {name for x in HF_ARCHITECTURES.values() for name in (x.name, *x.also)}
    assert converted == set(ARCHITECTURES)


@pytest.fixture(scope="module", params=hf_models.CASES, ids=lambda case: case.name)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    """A model's folder, and the model."""
    folder = tmp_path_factory.mktemp("tiny")
    model = hf_models.save_model(request.param, folder)
    vocabularies.save_sentencepiece(folder)
    return folder, model


def logits_of(model: Any, ids: list[int]) -> np.ndarray:
    """transformers' logits (T, V)."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def greedy_ids(model: Any, ids: list[int]) -> list[int]:
    """transformers' greedy continuation, every step from the whole text."""
    ids = list(ids)
    for _ in range(N_GREEDY):
        ids.append(int(logits_of(model, ids)[-1].argmax()))
    return ids[-N_GREEDY:]


def test_logits_and_greedy_ids_at_f32(
    saved: tuple[Path, Any], tmp_path: Path, plain_ops: ModuleType, llama_oracle: ModuleType
) -> None:
    folder, model = saved
    path = tmp_path / "model.gguf"
    convert(folder, path, MIXES["f32"])
    expected = logits_of(model, IDS)
    continued = greedy_ids(model, IDS)
    with open_gguf(path) as file:
        config = ModelConfig.from_metadata(file.metadata)
        ours = Transformer(config, Weights.load(file.tensors, config), 128)
        computed = plain_ops.read(ours, plain_ops.PlainAttention(config), IDS, n_ctx=N_CTX)
        ids, _ = plain_ops.greedy(
            ours, plain_ops.PlainAttention(config), IDS, N_GREEDY, n_ctx=N_CTX
        )
    # ggml rounds gelu through float16, as the plain operations here do too; transformers does not.
    limit = 1e-2 if config.architecture.activation == "gelu" else 1e-3
    assert np.abs(computed - expected).max() < limit * expected.std()
    assert ids == continued
    with llama_oracle.oracle(path, N_CTX, config.n_vocab) as llama:
        assert np.abs(llama.forward(IDS) - expected).max() < limit * expected.std()


# Root mean square of what a type does to the logits of these peaked models, in units of their
# spread; measured: at most 0.0026, 0.071, 0.41 (rows of 64 weights: the mix has Q5_0 for them).
NOISE = {"f16": 4e-3, "q8_0": 0.1, "q4_k_m": 0.6}


@pytest.mark.parametrize("file_type", NOISE)
def test_logits_within_the_noise_of_the_type(
    saved: tuple[Path, Any],
    tmp_path: Path,
    plain_ops: ModuleType,
    llama_oracle: ModuleType,
    file_type: str,
) -> None:
    folder, model = saved
    path = tmp_path / "model.gguf"
    convert(folder, path, MIXES[file_type])
    exact = logits_of(model, IDS)

    def noise(computed: np.ndarray) -> float:
        return float(np.sqrt(np.mean((computed - exact) ** 2)) / exact.std())

    with open_gguf(path) as file:
        config = ModelConfig.from_metadata(file.metadata)
        ours = Transformer(config, Weights.load(file.tensors, config), 128)
        computed = plain_ops.read(ours, plain_ops.PlainAttention(config), IDS, n_ctx=N_CTX)
    with llama_oracle.oracle(path, N_CTX, config.n_vocab) as llama:
        theirs = noise(llama.forward(IDS))
    assert noise(computed) < NOISE[file_type]
    # llama.cpp rounds activations to 8 bits beside the weights, the plain operations do not.
    assert noise(computed) < 1.1 * theirs
