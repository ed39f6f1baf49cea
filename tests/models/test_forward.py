"""Properties of the forward pass: cached equals uncached, and every described difference counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvarn.models import ModelConfig, ModelError
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights

from ..kv_layers import with_kv_layers

N_CTX = 256


def build(golden: Any, plain: ModuleType, max_chunk: int = 128) -> Transformer:
    config = ModelConfig.from_metadata(golden.metadata)
    return Transformer(config, Weights.load(plain.as_tensors(golden.arrays), config), max_chunk)


def read(
    model: Transformer, plain: ModuleType, ids: list[int], chunk: int = 128, n_ctx: int = N_CTX
) -> np.ndarray:
    """Logits (T, V) of ids read from an empty cache in chunks."""
    logits: np.ndarray = plain.read(model, plain.PlainAttention(model.config), ids, chunk, n_ctx)
    return logits


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference in units of b's spread."""
    return float(np.abs(a - b).max() / b.std())


@pytest.mark.parametrize("name", ["llama-odd", "gemma3", "cohere2", "phi3-long", "mistral3"])
@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_chunks_change_nothing(
    name: str, chunk: int, golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models(name)
    model, ids = build(golden, plain_ops), golden.prompt + golden.ids
    whole = read(model, plain_ops, ids)
    # The order of sums in a matrix product depends on the number of rows.
    limit = 1e-3 if golden.case.gelu else 1e-4
    assert difference(read(model, plain_ops, ids, chunk), whole) < limit


@pytest.mark.parametrize("name", ["llama-odd", "gemma3", "cohere2", "phi3-long", "mistral3"])
def test_the_last_layer_is_computed_for_the_tokens_asked_for(
    name: str, golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    model, ids = build(golden_models(name), plain_ops), np.arange(20, dtype=np.int32)
    n_layers = model.config.n_layers

    class Counted(plain_ops.PlainAttention):  # type: ignore[name-defined,misc]
        def __init__(self, every_query: bool = False) -> None:
            super().__init__(model.config)
            self.every_query, self.rows = every_query, [0] * n_layers

        def __call__(self, layer: int, q: Any, k: Any, v: Any, out: Any) -> None:
            self.rows[layer] = len(q)
            super().__call__(layer, q, k, v, out)

    def run(attention: Counted, n_out: int | None) -> tuple[np.ndarray, int]:
        hidden = model.forward(ids, 0, attention, N_CTX, n_out).copy()
        assert attention.rows[:-1] == [20] * (n_layers - 1)
        return hidden, attention.rows[-1]

    whole, rows = run(Counted(), None)
    assert whole.shape == (20, model.config.n_embd) and rows == 20
    for n_out, most in ((1, 10), (12, 12)):
        hidden, rows = run(Counted(), n_out)
        assert n_out <= rows <= most
        np.testing.assert_allclose(hidden, whole[-n_out:], rtol=1e-5, atol=1e-5)
    assert run(Counted(every_query=True), 1)[1] == 20
    seen = []

    with model.watch(lambda inputs, *_: seen.append(len(inputs))):
        run(Counted(), 1)
    n_seen = len(seen)
    run(Counted(), 1)
    assert set(seen) == {20} and len(seen) == n_seen  # nobody watches any more


@pytest.mark.parametrize(
    "name",
    ["granitehybrid", "nemotron_h", "falcon-h1", "deepseek2", "deepseek2-lite", "qwen35", "lfm2"],
)
@pytest.mark.parametrize("n_out", [1, 12])
def test_a_row_asked_for_is_that_of_all_rows(
    name: str, n_out: int, golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    """Of last layers whose mixers carry a state, or keep compressed rows."""
    model, ids = build(golden_models(name), plain_ops), np.arange(3, 23, dtype=np.int32)
    whole, part = (
        model.forward(ids, 0, plain_ops.PlainAttention(model.config), N_CTX, n).copy()
        for n in (None, n_out)
    )
    np.testing.assert_allclose(part, whole[-n_out:], rtol=1e-5, atol=1e-5)


def without(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The configuration with fields of every layer's attention changed."""
    return with_kv_layers(config, (replace(layer, **changes) for layer in config.kv_layers))


def no_rope_scaling(config: ModelConfig) -> ModelConfig:
    return with_kv_layers(
        config,
        (
            replace(layer, rope=layer.rope and replace(layer.rope, scaling="linear", scale=1.0))
            for layer in config.kv_layers
        ),
    )


def with_base(config: ModelConfig, base: float) -> ModelConfig:
    ropes = (layer.rope for layer in config.kv_layers)
    return with_kv_layers(
        config,
        (
            replace(layer, rope=rope and replace(rope, base=base))
            for layer, rope in zip(config.kv_layers, ropes, strict=True)
        ),
    )


def other(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The configuration with fields of its architecture changed."""
    return replace(config, architecture=replace(config.architecture, **changes))


ABLATIONS: dict[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "rope": ("llama-mha", lambda c: without(c, rope=None)),
    "rope style": ("llama-mha", lambda c: other(c, rope="neox")),
    "neox style": ("qwen3", lambda c: other(c, rope="normal")),
    "linear scaling": ("llama-linear", no_rope_scaling),
    "yarn": ("llama-yarn", no_rope_scaling),
    "gemma3's own base": ("gemma3", lambda c: without(c, rope=c.kv_layers[0].rope)),
    "window": ("gemma2", lambda c: without(c, window=None)),
    "window of one less": ("cohere2", lambda c: without(c, window=11)),
    "attention scale": ("gemma2-46", lambda c: without(c, attention_scale=8**-0.5)),
    "attention softcap": ("gemma2-caps", lambda c: without(c, attention_softcap=0.0)),
    "final softcap": ("gemma2-caps", lambda c: replace(c, final_softcap=0.0)),
    "embedding scale": ("gemma2", lambda c: replace(c, embedding_scale=1.0)),
    "activation": ("gemma2", lambda c: other(c, activation="silu")),
    "temperature": ("mistral3", lambda c: replace(c, temperature_scale=0.0)),
    "logit scale": ("cohere2", lambda c: replace(c, logit_scale=1.0)),
    "norm": ("cohere2", lambda c: other(c, norm="rms")),
    "granite's scale of residuals": ("granite", lambda c: replace(c, residual_scale=1.0)),
    "granite's embedding scale": ("granite", lambda c: replace(c, embedding_scale=1.0)),
    "granite's attention scale": ("granite", lambda c: without(c, attention_scale=0.25)),
    "granite's logit scale": ("granite", lambda c: replace(c, logit_scale=4.0)),
    "norms after rope": ("hunyuan-dense", lambda c: other(c, qk_norm_after_rope=False)),
    "hunyuan's base": ("hunyuan-dense", lambda c: with_base(c, 10_000.0)),
    "Olmo 3's unscaled windows": ("olmo2-window", lambda c: without(c, rope=c.kv_layers[3].rope)),
    "exaone4's layers without rope": (
        "exaone4-64",
        lambda c: without(c, rope=c.kv_layers[0].rope),
    ),
    "weights of norms of each head": ("command-r-64", lambda c: other(c, qk_norm="row")),
    "squared relu": ("nemotron", lambda c: other(c, activation="gelu")),
    "gelu without a gate": ("phi2", lambda c: other(c, activation="relu-squared")),
    "norm of embeddings": ("muse-glimmer", lambda c: other(c, embedding_norm=False)),
    "second epsilon": ("muse-glimmer", lambda c: other(c, post_norm_eps=None)),
    "muse-glimmer's layers without rope": (
        "muse-glimmer",
        lambda c: without(c, rope=c.kv_layers[0].rope),
    ),
    "sinks": ("gpt-oss", lambda c: without(c, sinks=False)),
    "layers without rope": ("smollm3", lambda c: without(c, rope=c.kv_layers[0].rope)),
}


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_described_difference_changes_the_logits(
    ablation: str, golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    name, change = ABLATIONS[ablation]
    golden = golden_models(name)
    model, ids = build(golden, plain_ops), golden.prompt + golden.ids
    expected = read(model, plain_ops, ids)
    ablated = Transformer(change(model.config), model.weights, 128)
    # A hundred times the tolerance that the comparison with llama.cpp allows.
    assert difference(read(ablated, plain_ops, ids), expected) > 0.02


def test_the_output_gate_changes_the_logits(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models("muse-glimmer")
    model, arrays = build(golden, plain_ops), golden.arrays
    expected = read(model, plain_ops, golden.prompt)
    for index in range(model.config.n_layers):
        arrays[f"blk.{index}.attn_gate.weight"][:] = 0.0  # all gates are one half
    weights = Weights.load(plain_ops.as_tensors(arrays), model.config)
    ablated = Transformer(model.config, weights, 128)
    assert difference(read(ablated, plain_ops, golden.prompt), expected) > 0.02


def test_long_contexts_of_longrope_models_rotate_by_other_factors(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    golden = golden_models("phi3-long")
    model = build(golden, plain_ops)
    short, long = (read(model, plain_ops, golden.prompt, n_ctx=n) for n in (64, 65))
    assert difference(short, long) > 0.02
    np.testing.assert_array_equal(read(model, plain_ops, golden.prompt, n_ctx=64), short)


def test_greedy_runs_of_the_tiny_models_vary(golden_models: Callable[[str], Any]) -> None:
    for name in ("llama-mha", "qwen3", "gemma2", "gemma3", "cohere2", "smollm3"):
        assert len(set(golden_models(name).ids)) >= 12


@pytest.mark.parametrize(
    ("ids", "start", "words"),
    [
        ([], 0, "0 tokens, expected 1 to 128"),
        ([3] * 129, 0, "129 tokens, expected 1 to 128"),
        ([3], -1, "position -1"),
        ([3, 97], 0, "token id 97, expected 0 to 96"),
        ([3, -1], 0, "token id -1, expected 0 to 96"),
    ],
)
def test_wrong_input_is_refused(
    ids: list[int],
    start: int,
    words: str,
    golden_models: Callable[[str], Any],
    plain_ops: ModuleType,
) -> None:
    model = build(golden_models("llama-mha"), plain_ops)
    attention = plain_ops.PlainAttention(model.config)
    with pytest.raises(ModelError, match=words):
        model.forward(np.array(ids, np.int32), start, attention)


def test_wrong_sizes_are_refused(
    golden_models: Callable[[str], Any], plain_ops: ModuleType
) -> None:
    model = build(golden_models("llama-mha"), plain_ops)
    with pytest.raises(ModelError, match="129 rows, expected 1 to 128"):
        model.logits(np.empty((129, 64), np.float32), np.empty((129, 97), np.float32))
    for n_out in (0, 4):
        with pytest.raises(ModelError, match=f"hidden states of {n_out} tokens, expected 1 to 3"):
            model.forward(
                np.zeros(3, np.int32), 0, plain_ops.PlainAttention(model.config), N_CTX, n_out
            )
    with pytest.raises(ModelError, match="max_chunk is 0"):
        Transformer(model.config, model.weights, 0)
