"""Every architecture: transformers, kvarn and llama.cpp say the same of the same weights."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import hf_models
import numpy as np
import pytest
import vocabularies

torch = pytest.importorskip("torch", reason="the oracle, torch, is absent")
pytest.importorskip("transformers", reason="the oracle, transformers, is absent")

from kvarn.convert.hf import convert  # noqa: E402
from kvarn.convert.hf.architectures import HF_ARCHITECTURES  # noqa: E402
from kvarn.convert.quantize.mixes import MIXES  # noqa: E402
from kvarn.models import ModelConfig  # noqa: E402
from kvarn.models.architectures import ARCHITECTURES  # noqa: E402
from kvarn.models.transformer import Transformer  # noqa: E402
from kvarn.models.weights import Weights  # noqa: E402
from kvarn.runtime.gguf import open_gguf  # noqa: E402

N_CTX = 256
# Beyond every window of the tiny models, and beyond the original context of LongRoPE (64).
IDS = [1, *np.random.default_rng(5).integers(3, 300, 71).tolist()]
N_GREEDY = 8


def test_there_is_a_case_for_every_architecture_of_the_runtime() -> None:
    assert {found.name for found in HF_ARCHITECTURES.values()} == set(ARCHITECTURES)


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
        found = plain_ops.read(ours, plain_ops.PlainAttention(config), IDS, n_ctx=N_CTX)
        ids, _ = plain_ops.greedy(
            ours, plain_ops.PlainAttention(config), IDS, N_GREEDY, n_ctx=N_CTX
        )
    # ggml rounds gelu through float16, as the plain operations here do too; transformers does not.
    limit = 1e-2 if config.architecture.activation == "gelu" else 1e-3
    assert np.abs(found - expected).max() < limit * expected.std()
    assert ids == continued
    with llama_oracle.oracle(path, N_CTX, config.n_vocab) as llama:
        assert np.abs(llama.forward(IDS) - expected).max() < limit * expected.std()


@pytest.mark.parametrize("file_type", ["f16", "bf16", "q8_0"])
def test_stored_weights_are_those_of_the_model_within_their_type(
    saved: tuple[Path, Any], tmp_path: Path, file_type: str
) -> None:
    folder, _ = saved
    exact, path = tmp_path / "exact.gguf", tmp_path / "model.gguf"
    convert(folder, exact, MIXES["f32"])
    convert(folder, path, MIXES[file_type])
    wanted = {t.name: t.data for t in gguf.GGUFReader(exact).tensors}
    # Half a step of the type: 2^-11 and 2^-8 of a value, 1/254 of a block's largest.
    step = {"f16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 0.0}[file_type]
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        reference = wanted[tensor.name].reshape(values.shape)
        error = np.abs(values - reference)
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            assert not error.any(), tensor.name
        elif tensor.tensor_type == gguf.GGMLQuantizationType.Q8_0:
            largest = np.abs(reference.reshape(-1, 32)).max(1, keepdims=True)
            assert (error.reshape(-1, 32) <= largest * (0.5 / 127 + 2.0**-10)).all(), tensor.name
        else:
            assert (error <= np.abs(reference) * max(step, 2.0**-11) + 1e-7).all(), tensor.name
