"""Contexts of a model whose heads have attention sinks, by every method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.ops.attention.prefill import listed
from kvarn.runtime.prefill import attention, blocks

from ..models import tiny_cases, tiny_models

N = 1400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> kvarn.Model:
    (case,) = (case for case in tiny_cases.CASES if case.name == "gpt-oss")
    path = tmp_path_factory.mktemp("sinks") / "model.gguf"
    tiny_models.write(path, case, 1)
    return kvarn.load(path)


@pytest.fixture(scope="module")
def ids(model: kvarn.Model) -> list[int]:
    return np.random.default_rng(7).integers(3, model.config.n_vocab, N).tolist()


@pytest.fixture(scope="module")
def expected(model: kvarn.Model, ids: list[int]) -> list[np.ndarray]:
    return logits(model, ids)


def logits(model: kvarn.Model, ids: list[int], **axes: Any) -> list[np.ndarray]:
    with model.context(N + 8, **axes) as context:
        return [context.prefill(ids), *(context.decode(i).copy() for i in (5, 9, 11))]


def largest_difference(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return max(float(np.abs(x - y).max() / y.std()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    "attend",
    [
        kvarn.TopK(budget=str(N - 10), sink=4, window=16),
        kvarn.TopK(budget="700", sink=4, window=16, tail="means"),
        kvarn.Hash(budget=str(N - 10), sink=4, window=16, encoders="simhash"),
    ],
    ids=lambda attend: f"{attend.name}-{attend.budget}",
)
def test_methods_that_read_nearly_all_are_near_full(
    attend: kvarn.Attend, model: kvarn.Model, ids: list[int], expected: list[np.ndarray]
) -> None:
    assert largest_difference(logits(model, ids, attend=attend), expected) < 0.1


@pytest.mark.parametrize("keep", ["nacl", "hashevict", "h2o", "snapkv", "tova", "streaming"])
def test_slots_that_hold_all_are_full(
    keep: str, model: kvarn.Model, ids: list[int], expected: list[np.ndarray]
) -> None:
    """Room for all tokens but the last few, so that little is lost."""
    method = {
        "nacl": kvarn.NaCl,
        "hashevict": kvarn.HashEvict,
        "h2o": kvarn.H2O,
        "snapkv": kvarn.SnapKV,
        "tova": kvarn.TOVA,
        "streaming": kvarn.Streaming,
    }[keep]
    assert largest_difference(logits(model, ids, keep=method(str(N - 2))), expected) < 0.2


@pytest.mark.parametrize("method", [kvarn.NaCl, kvarn.H2O, kvarn.SnapKV, kvarn.TOVA])
def test_prompts_that_are_scored_are_read_exactly(
    method: Any, model: kvarn.Model, ids: list[int], expected: list[np.ndarray]
) -> None:
    with model.context(N + 8, keep=method("600")) as context:
        assert largest_difference([context.prefill(ids)], expected[:1]) < 1e-3


@pytest.mark.parametrize(
    "prefill", [kvarn.SparsePrefill(k=64, from_=1024), kvarn.BlocksPrefill(size=512)]
)
def test_rows_that_read_lists_have_the_sinks(
    prefill: Any, model: kvarn.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, seen = listed.listed_attention, []

    def listed_attention(*args: Any, **options: Any) -> None:
        seen.append(options["softmax"].sinks)
        known(*args, **options)

    for module in (attention, blocks):
        monkeypatch.setattr(module, "listed_attention", listed_attention)
    with model.context(N + 8, prefill=prefill) as context:
        context.prefill(ids)
    layers = [i for i, layer in enumerate(model.config.kv_layers) if layer.window is None]
    logits = [model.transformer.weights.sink_logits[i] for i in layers]
    assert {x.tobytes() for x in seen} == {x.tobytes() for x in logits if x is not None}


def test_keys_in_four_bits_have_no_centre(model: kvarn.Model) -> None:
    """A constant on the scores of a head's tokens would change what its sink takes."""
    with model.context(64, store=kvarn.Ram("q4_0", "f16")) as context:
        assert context.store.centre is None


def test_prompts_are_cut_anywhere(
    model: kvarn.Model, ids: list[int], expected: list[np.ndarray]
) -> None:
    with model.context(N + 8) as context:
        for first, stop in ((0, 1), (1, 3), (3, 700), (700, N)):
            context.prefill(ids[first:stop])
        np.testing.assert_array_equal(context.logits, expected[0])
