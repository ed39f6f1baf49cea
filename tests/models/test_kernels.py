"""The golden runs on the kernels: matrices and norms first, then the whole stack with its cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.ops.types import QUANT_TYPES

from . import plain
from .tiny_cases import CASES

pytestmark = pytest.mark.usefixtures("one_thread")

# ggml takes gelu from a table in float16, the kernels compute it: see test_golden for the unit.
GELU_TOLERANCE = {"gemma2-46": 3e-2}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_kernels_give_llama_cpps_ids(name: str, golden_models: Callable[[str], Any]) -> None:
    golden = golden_models(name)
    ids, error = plain.greedy_of(golden)
    assert ids == golden.ids
    assert error < (GELU_TOLERANCE.get(name, 5e-3) if golden.case.gelu else 2e-4)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "cohere2"])
def test_recorded_logits_are_those_of_any_rows(
    name: str, golden_models: Callable[[str], Any]
) -> None:
    """Bit for bit, for each hidden state anew, and where products are watched."""
    golden = golden_models(name)
    config = ModelConfig.from_metadata(golden.metadata)
    model = Transformer(config, Weights.load(plain.as_tensors(golden.arrays), config), 64)
    hidden = np.random.default_rng(5).standard_normal((3, 1, config.n_embd), np.float32)
    out, seen = np.empty((1, config.n_vocab), np.float32), []
    for row in hidden:
        model.logits(row, out)
        np.testing.assert_array_equal(model.next_logits(row), out)
    with model.watch(lambda inputs, *_: seen.append(inputs.copy())):
        np.testing.assert_array_equal(model.next_logits(hidden[2]), out)
    np.testing.assert_array_equal(seen, hidden[2:])


# Head sizes 8 to 512, windows, softcaps, layers without rope, groups of 1 to 8, all kinds of norms.
STACKS = (
    "llama-odd",
    "llama-groups8",
    "mistral3",
    "qwen2",
    "qwen3",
    "phi3-long",
    "gemma2",
    "gemma3-dense",
    "cohere2",
    "smollm3",
    "granite",
    "olmo2-window",
    "exaone4-64",
    "glm4",
    "hunyuan-dense",
    "llama-experts",
    "qwen3moe",
    "ernie4_5-moe",
    "stablelm-12b",
    "nemotron",
    "phi2",
    "muse-glimmer",
    "gpt-oss",
    "gemma4",
    "gemma4-shared",
    "gemma4-experts",
)


@pytest.mark.parametrize("name", STACKS)
def test_the_whole_stack_gives_llama_cpps_ids(
    name: str, golden_models: Callable[[str], Any]
) -> None:
    """File, kernels, float16 KV tiles, sampler: the goldens' margins leave room for float16."""
    golden = golden_models(name)
    model = kvarn.load(golden.path())
    context = model.context(golden.case.n_ctx)
    sampler = kvarn.Sampler(temp=0)
    ids = context.generate_ids(golden.prompt, len(golden.ids), sampler, stop_at_eos=False)
    assert list(ids) == golden.ids


@pytest.mark.data
@pytest.mark.parametrize("name", ["stories260K", "babyllama-tok105"])
def test_the_whole_stack_gives_a_trained_models_ids(name: str, data_dir: Path) -> None:
    folder = data_dir / "weights" / name
    golden = json.loads((folder / "golden-greedy.json").read_text())
    model = kvarn.load(folder / f"{name}-f32.gguf")
    prompt = golden["prompt_ids"]
    n = len(golden["ids"]) - len(prompt)
    ids = model.context().generate_ids(prompt, n, kvarn.Sampler(temp=0), stop_at_eos=False)
    assert prompt + list(ids) == golden["ids"]


@pytest.mark.parametrize("name", ["llama-odd", "qwen3moe"])
@pytest.mark.parametrize("chunk", [1, 7])
def test_cached_equals_uncached_on_kernels(
    chunk: int, name: str, golden_models: Callable[[str], Any]
) -> None:
    golden = golden_models(name)
    config = ModelConfig.from_metadata(golden.metadata)
    weights = Weights.load(plain.as_tensors(golden.arrays), config)
    model = Transformer(config, weights, 512)
    ids = (golden.prompt + golden.ids) * 5
    whole = plain.read(model, plain.PlainAttention(config), ids[:512], 512)
    parts = plain.read(model, plain.PlainAttention(config), ids[:512], chunk)
    assert np.abs(parts - whole).max() < 1e-4 * whole.std()


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_rows_that_no_block_divides_in_half_precision(
    kind: str, golden_models: Callable[[str], Any]
) -> None:
    """Kernels multiply these types without rounding activations: float32 errors, no more."""
    golden = golden_models("llama-odd")
    tensors = {}
    for name, values in golden.arrays.items():
        stored = values.astype(np.float16) if kind == "F16" else values.view(np.uint32) >> 16
        stored = stored.astype(np.uint16) if kind == "BF16" else stored
        quant = QUANT_TYPES[kind if values.ndim == 2 else "F32"]
        tensors[name] = plain.ArrayTensor(name, stored if values.ndim == 2 else values, quant)
    config = ModelConfig.from_metadata(golden.metadata)
    runs = []
    for decoded in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if decoded:
                plain.use_plain_ops(patch)
            model = Transformer(config, Weights.load(tensors, config), 64)
            attention = plain.PlainAttention(config)
            runs.append(plain.read(model, attention, golden.prompt, 13))
    assert np.abs(runs[0] - runs[1]).max() < 1e-4 * runs[1].std()
