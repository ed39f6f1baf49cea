"""Layers that differ in their heads, that read keys and values of others, and their bad files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.models import ModelConfig, ModelError
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.store import Disk

from . import plain, tiny_models
from .tiny.case import SWA

NAMES = ["gemma4", "gemma4-shared", "gemma4-experts"]
N = 2700


def test_layers_have_heads_of_their_own(golden_models: Callable[[str], Any]) -> None:
    config = ModelConfig.from_metadata(golden_models("gemma4").metadata)
    heads = [(layer.n_kv_heads, layer.head_dim, layer.window) for layer in config.kv_layers]
    assert heads == [(4, 16, 12)] * 2 + [(1, 80, None)] * 2
    assert (config.n_kv_heads, config.head_dim, config.one_geometry) == (1, 80, False)
    values = golden_models("gemma4").metadata | {"gemma4.rope.freq_base_swa": None}
    ropes = [layer.rope for layer in ModelConfig.from_metadata(values).kv_layers]
    assert [(rope.base, rope.factors) for rope in ropes] == [(1e4, False)] * 2 + [(1e6, True)] * 2


def test_the_last_layers_read_the_last_of_their_kind(golden_models: Callable[[str], Any]) -> None:
    config = ModelConfig.from_metadata(golden_models("gemma4-shared").metadata)
    assert [layer.attention.reads for layer in config.layers] == [None] * 4 + [2, 3]
    assert [config.attention_number(i) for i in range(6)] == [0, 1, 2, 3, 4, 5]
    assert config.kv_numbers == (0, 1, 2, 3, 2, 3) and config.last_storing == 3
    assert config.n_kv_layers == 4 and config.shares_kv and not config.one_geometry


@pytest.mark.parametrize("name", NAMES)
def test_a_long_context_is_read_as_by_a_cache_that_holds_all(
    name: str, golden_models: Callable[[str], Any]
) -> None:
    """Beyond what layers with a window hold, and again after a cut that needs a checkpoint."""
    golden = golden_models(name)
    config = ModelConfig.from_metadata(golden.metadata)
    weights = Weights.load(plain.as_tensors(golden.arrays), config)
    model = Transformer(config, weights, 256)
    prompt = (golden.prompt * 100)[:N]
    whole = plain.read(model, plain.PlainAttention(config), [*prompt, 5, 6, 7], 256, 4096)
    context = kvarn.load(golden.path()).context(4096)
    for ids in (prompt, prompt[:1100], prompt, [*prompt[:700], 9, 8], prompt):
        context.prefill(ids[context.cut_to_shared(ids[:-1]) :])
    got = np.stack([context.decode(token).copy() for token in (5, 6, 7)])
    # Keys and values are stored in float16, and scores are not scaled.
    assert np.abs(got - whole[N:]).max() < 0.03 * whole.std()


@pytest.mark.parametrize("name", NAMES)
def test_a_pack_gives_the_ids_of_memory(
    name: str, golden_models: Callable[[str], Any], tmp_path: Path
) -> None:
    """Those of llama.cpp, from a pack that was opened again."""
    golden = golden_models(name)
    model = kvarn.load(golden.path())
    with model.context(256, store=Disk(tmp_path / "pack")) as context:
        context.prefill(golden.prompt)
    with model.context(256, store=Disk(tmp_path / "pack")) as context:
        greedy = kvarn.Sampler(temp=0)
        ids = list(context.generate_ids((), len(golden.ids), greedy, stop_at_eos=False))
    assert ids == golden.ids


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("gemma4-shared", "attention.shared_kv_layers", 6, "whose keys and values can be shared"),
        ("gemma4-shared", "attention.shared_kv_layers", 5, "whose keys and values can be shared"),
        ("gemma4-shared", "feed_forward_length", [96] * 5, "integers from 1 to"),
        ("gemma4-shared", "feed_forward_length", [96] * 5 + [0], "integers from 1 to"),
        ("gemma4", "attention.head_count_kv", [4, 2, 1, 1], "one number for layers with a window"),
        ("gemma4", "attention.head_count_kv", [3, 3, 1, 1], "a divisor of 4 heads"),
        ("gemma4", "attention.key_length", 514, "1 to 512"),
        ("gemma4", "attention.key_length_swa", 15, "an even number"),
        ("gemma4", "attention.value_length_swa", 80, "expected 16"),
        ("gemma4", "rope.dimension_count_swa", None, "rope.dimension_count_swa"),
    ],
)
def test_bad_keys(
    name: str, key: str, value: Any, message: str, golden_models: Callable[[str], Any]
) -> None:
    values = golden_models(name).metadata | {f"gemma4.{key}": value}
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_metadata(values)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("blk.0.attn_k.weight", "is missing"),
        ("per_layer_token_embd.weight", "is missing"),
        ("blk.1.post_norm.weight", "is missing"),
        ("blk.5.inp_gate.weight", "is missing"),
    ],
)
def test_missing_tensors(tensor: str, message: str, golden_models: Callable[[str], Any]) -> None:
    golden = golden_models("gemma4-shared")
    arrays = {name: values for name, values in golden.arrays.items() if name != tensor}
    with pytest.raises(ModelError, match=message):
        Weights.load(plain.as_tensors(arrays), ModelConfig.from_metadata(golden.metadata))


def test_windows_that_no_store_holds_are_refused(
    golden_models: Callable[[str], Any], tmp_path: Path
) -> None:
    case = golden_models("gemma4").case
    long = replace(case, keys=case.keys | {SWA: 3_000_000})
    tiny_models.write(path := tmp_path / "long.gguf", long, 1)
    with pytest.raises(kvarn.KvarnError, match="windows of more than 4,096 tokens cannot be held"):
        kvarn.load(path).context(64)
