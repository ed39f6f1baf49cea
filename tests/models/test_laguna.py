"""Layers that differ in their query heads, and gates of heads: configuration, methods, packs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.models import ModelConfig, ModelError
from kvarn.models.weights import Weights

from . import plain
from .tiny.case import PATTERN

N = 1500


@pytest.fixture(scope="module")
def model(golden_models: Callable[[str], Any]) -> kvarn.Model:
    return kvarn.load(golden_models("laguna").path())


@pytest.fixture(scope="module")
def prompt(golden_models: Callable[[str], Any]) -> list[int]:
    return (golden_models("laguna").prompt * 50)[:N]


def test_layers_have_query_heads_and_rotations_of_their_own(
    golden_models: Callable[[str], Any],
) -> None:
    metadata = golden_models("laguna").metadata
    config = ModelConfig.from_metadata(metadata)
    layers = [(layer.n_heads, layer.window) for layer in config.kv_layers]
    assert layers == [(4, None), (8, 12), (8, 12), (8, 12), (4, None)]
    assert (config.n_heads, config.n_kv_heads, config.one_geometry) == (4, 1, True)
    ropes = [layer.rope for layer in config.kv_layers[:2]]
    assert [(r.n_rot, r.base, r.scaling) for r in ropes] == [(16, 5e5, "yarn"), (32, 1e4, "none")]
    assert ropes[1].amplitude == 1.0
    values = metadata | {f"laguna.{PATTERN}": [True, False, False, True, True]}
    values["laguna.attention.head_count"] = [8, 4, 4, 8, 8]
    layers = ModelConfig.from_metadata(values).kv_layers
    assert [(x.n_heads, x.window is None) for x in layers[:3]] == [(8, False), (4, True), (4, True)]
    values = metadata | {f"laguna.{PATTERN}": 0, "laguna.attention.head_count": 8}
    assert {(x.n_heads, x.window) for x in ModelConfig.from_metadata(values).kv_layers} == {(8, 12)}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.head_count", [4, 8, 8, 4, 4], "one number for layers with a window"),
        ("attention.head_count", [4, 8, 8], "integers from 1 to 4096 for 5 layers"),
        ("attention.head_count", [4, 0, 0, 0, 4], "integers from 1 to 4096 for 5 layers"),
        ("attention.head_count_kv", 8, "head_count_kv is 8, expected a divisor of 4 heads"),
        ("rope.dimension_count_swa", 34, "an integer from 2 to 32"),
        ("rope.dimension_count_swa", 15, "an even number up to 32"),
    ],
)
def test_bad_heads_are_refused(
    key: str, value: object, message: str, golden_models: Callable[[str], Any]
) -> None:
    values = golden_models("laguna").metadata | {f"laguna.{key}": value}
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_metadata(values)


def test_a_gate_of_another_width_is_refused(golden_models: Callable[[str], Any]) -> None:
    golden = golden_models("laguna")
    arrays = golden.arrays
    arrays["blk.1.attn_gate.weight"] = np.zeros((4, 64), np.float32)
    config = ModelConfig.from_metadata(golden.metadata)
    with pytest.raises(ModelError, match=r"blk.1.attn_gate.weight has shape \(4, 64\)"):
        Weights.load(plain.as_tensors(arrays), config)


FEW = {"sink": 4, "window": 16}
METHODS = [
    *(kvarn.TopK(budget, **FEW) for budget in (2 * N, 64)),
    *(kvarn.Hash(budget, **FEW) for budget in (2 * N, 64)),
    kvarn.MagicPig(dense_layers="none"),
    kvarn.Auto(budget=64, full_up_to=100, **FEW),
]


@pytest.mark.parametrize("attend", METHODS, ids=str)
def test_methods_choose_in_the_layers_without_a_window(
    attend: Any, model: kvarn.Model, prompt: list[int]
) -> None:
    results = []
    for method in (kvarn.Full(), attend):
        with model.context(2048, method) as context:
            context.prefill(prompt)
            results.append(np.stack([context.decode(token).copy() for token in (5, 6, 7)]))
            steps = [reads.steps for reads in context.stats.layers]
    whole = str(getattr(attend, "budget", "")) == str(2 * N)
    assert steps == [0] * 5 if whole else [3, 0, 0, 0, 3]
    assert np.isfinite(results).all() and np.array_equal(*results) == whole


def test_prompts_choose_in_them(model: kvarn.Model, prompt: list[int]) -> None:
    with model.context(4096, prefill=kvarn.SparsePrefill(k=16, from_=1024)) as context:
        context.prefill([*prompt, *prompt])
        assert np.isfinite(context.decode(5)).all()


@pytest.mark.parametrize("keep", [kvarn.HashEvict(256), kvarn.Streaming(256), kvarn.NaCl(256)])
def test_tokens_are_evicted(keep: Any, model: kvarn.Model, prompt: list[int]) -> None:
    """In pieces of any size, whose rounding differs."""
    results = []
    for step in (N, 100):
        with model.context(2048, keep=keep) as context:
            for first in range(0, N, step):
                context.prefill(prompt[first : first + step])
            results.append(context.decode(5).copy())
    assert np.isfinite(results).all()
    if keep.name != "nacl":  # it evicts at the end of each prompt
        np.testing.assert_allclose(*results, atol=0.02 * results[0].std())


def test_a_pack_that_is_opened_again_goes_on_with_the_same_bits(
    model: kvarn.Model, prompt: list[int], tmp_path: Path
) -> None:
    disk = kvarn.Disk(tmp_path / "pack")
    with model.context(2048, kvarn.TopK(64, **FEW), store=disk) as context:
        context.prefill(prompt)
        expected = [context.decode(token).copy() for token in (5, 6, 7)]
        context.truncate(N)
    with model.context(2048, kvarn.TopK(64, **FEW), store=disk) as context:
        assert len(context.tokens) == N
        np.testing.assert_array_equal([context.decode(token) for token in (5, 6, 7)], expected)
