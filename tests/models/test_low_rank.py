"""W x + B (A x) gives what the matrix W + B A gives, in every projection of every architecture."""

from __future__ import annotations

import numpy as np
import pytest

from kvarn.models import ModelConfig
from kvarn.models.errors import ModelError
from kvarn.models.low_rank import Factors, joined
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights

from . import plain, tiny_models
from .adapters import CASES, SEED, merged, projections, random_pairs
from .exact import exact_logits

N_CTX = 128


def factors_of(pairs: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Factors]:
    return {name: Factors(*pair) for name, pair in pairs.items()}


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference in units of b's spread."""
    return float(np.abs(a - b).max() / b.std())


@pytest.mark.parametrize("name", sorted(CASES))
def test_in_exact_arithmetic_all_architectures_are_the_merged_model(name: str) -> None:
    case = CASES[name]
    pairs = random_pairs(projections(case), 3)
    metadata, arrays = tiny_models.metadata(case), tiny_models.tensors(case, SEED)
    ids = tiny_models.prompt(case, SEED)[:12]
    wanted = exact_logits(metadata, merged(case, [(pairs, 1.0)]), ids, N_CTX)
    found = exact_logits(metadata, arrays, ids, N_CTX, factors_of(pairs))
    # The merged weights are rounded to float32 once: 6e-8 of each, which some layers multiply.
    # GELU is a table over float16 here, too, as in llama.cpp: a last bit may change the entry.
    assert difference(found, wanted) < (5e-3 if case.gelu else 1e-4)
    assert difference(exact_logits(metadata, arrays, ids, N_CTX), wanted) > 0.01


@pytest.mark.parametrize("part", ["attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down", "output."])
def test_adapters_of_some_matrices_leave_the_others(part: str) -> None:
    case = CASES["llama-mha"]
    shapes = {name: shape for name, shape in projections(case).items() if part in name}
    pairs = random_pairs(shapes, 3, size=2.0)
    metadata, arrays = tiny_models.metadata(case), tiny_models.tensors(case, SEED)
    ids = tiny_models.prompt(case, SEED)[:12]
    wanted = exact_logits(metadata, merged(case, [(pairs, 1.0)]), ids, N_CTX)
    found = exact_logits(metadata, arrays, ids, N_CTX, factors_of(pairs))
    assert difference(found, wanted) < 1e-5
    assert difference(exact_logits(metadata, arrays, ids, N_CTX), wanted) > 0.01


@pytest.mark.parametrize("chunk", [1, 3, 40])
@pytest.mark.parametrize("rank", [1, 8, 33])
@pytest.mark.parametrize(
    "name", ["llama-odd", "llama-fused", "gemma3", "phi3", "qwen35", "lfm2", "falcon-h1"]
)
def test_the_kernels_are_close_to_exact_arithmetic(name: str, rank: int, chunk: int) -> None:
    case = CASES[name]
    pairs = random_pairs(projections(case), rank)
    config = ModelConfig.from_metadata(tiny_models.metadata(case))
    ids = tiny_models.prompt(case, SEED)

    def read(arrays: dict[str, np.ndarray], adapters: dict[str, Factors]) -> np.ndarray:
        weights = Weights.load(plain.as_tensors(arrays), config, adapters=adapters)
        attention = plain.PlainAttention(config)
        attention.sinks = weights.sink_logits
        model = Transformer(config, weights, 64)
        logits: np.ndarray = plain.read(model, attention, ids, chunk, N_CTX)
        return logits

    wanted = read(merged(case, [(pairs, 1.0)]), {})
    found = read(tiny_models.tensors(case, SEED), factors_of(pairs))
    assert difference(found, wanted) < (1e-3 if case.gelu else 1e-4)


def test_joined_adapters_are_their_sum() -> None:
    rng = np.random.default_rng(3)
    parts = [
        Factors(*(rng.normal(size=shape).astype(np.float32) for shape in ((rank, 9), (7, rank))))
        for rank in (1, 4, 2)
    ]
    whole = joined(parts)
    np.testing.assert_allclose(whole.b @ whole.a, sum(x.b @ x.a for x in parts), atol=1e-5)


def test_an_adapter_of_a_matrix_that_is_taken_apart_is_refused() -> None:
    case = CASES["deepseek2-old"]
    arrays = tiny_models.tensors(case, SEED)
    name = "blk.0.attn_kv_b.weight"
    pairs = random_pairs({name: arrays[name].shape}, 3)
    ids = tiny_models.prompt(case, SEED)[:12]
    with pytest.raises(ModelError, match="attn_kv_b"):
        exact_logits(tiny_models.metadata(case), arrays, ids, N_CTX, factors_of(pairs))
