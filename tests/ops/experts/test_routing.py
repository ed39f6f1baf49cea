"""The choice of experts against NumPy: ties, one expert, all, groups, what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.experts import MOST_EXPERTS, ExpertMatrix, ExpertWeights, Routing
from kvarn.ops.experts.api import ExpertsScratch, experts
from kvarn.ops.linear import Activations
from kvarn.ops.reference.experts import route_reference
from kvarn.ops.types import QUANT_TYPES

TOKENS = (1, 3, 9)


def routed(
    logits: np.ndarray, routing: Routing, **options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids and weights of each token, and the outputs, of experts that give (e + 1) / 2 for x = 1.

    silu(x) up / silu(1) is up, whose one number is (e + 1) / 2.
    """
    n, n_tokens = routing.n_experts, len(logits)
    ones = np.ones((n, 1, 1), np.float32)
    number = (np.arange(n, dtype=np.float32) + 1).reshape(n, 1, 1) / 2
    parts = ones, number * np.float32(1 + np.exp(-1)), ones
    f32 = QUANT_TYPES["F32"]
    matrices = [ExpertMatrix.prepare(f32, part.view(np.uint8), 1) for part in parts]
    weights = ExpertWeights(routing, "silu", *matrices, **options)
    scratch = ExpertsScratch(routing, 1, 1, n_tokens)
    out = np.empty((n_tokens, 1), np.float32)
    act = Activations(n_tokens, 1).set(np.ones((n_tokens, 1), np.float32))
    experts(act, logits.copy(), weights, scratch, out)
    return scratch.pairs.ids[:n_tokens], scratch.pairs.weights[:n_tokens], out[:, 0]


def check(logits: np.ndarray, routing: Routing, **options: Any) -> None:
    ids, weights, out = routed(logits, routing, **options)
    for t, row in enumerate(logits):
        expected_ids, expected = route_reference(row, routing, **options)
        np.testing.assert_array_equal(ids[t], expected_ids)
        np.testing.assert_allclose(weights[t], expected, rtol=1e-5, atol=1e-12)
        np.testing.assert_allclose(out[t], (expected * (expected_ids + 1) / 2).sum(), rtol=2e-5)


def normal(n_tokens: int, n: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng([seed, n]).normal(size=(n_tokens, n))).astype(np.float32)


ROUTINGS = [
    Routing(1, 1),
    Routing(5, 2),
    Routing(5, 5, normalised=True),
    Routing(17, 3, "sigmoid", normalised=True, scale=2.5),
    Routing(32, 4, "softmax-of-chosen"),
    Routing(128, 8, normalised=True),
    Routing(MOST_EXPERTS, 10, scale=0.5),
    Routing(64, 6, "sigmoid", n_groups=8, n_groups_used=3, normalised=True, scale=2.5),
    Routing(12, 4, "softmax", n_groups=6, n_groups_used=2),
    Routing(7, 3, "sigmoid", n_groups=7, n_groups_used=4),
]


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("n_tokens", TOKENS)
def test_tokens_choose_what_the_formula_says(routing: Routing, n_tokens: int) -> None:
    logits = normal(n_tokens, routing.n_experts)
    check(logits, routing)
    rng = np.random.default_rng(1)
    bias, scales = (rng.normal(size=routing.n_experts).astype(np.float32) for _ in range(2))
    check(logits, routing, choice_bias=bias, scales=scales)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "softmax-of-chosen"])
@pytest.mark.parametrize("n_groups", [1, 4])
def test_the_first_of_equal_experts_is_chosen(scores: Any, n_groups: int) -> None:
    """Of equal experts, of two values, and of equal groups."""
    routing = Routing(24, 5, scores, n_groups=n_groups, n_groups_used=max(1, n_groups // 2))
    equal, two = np.zeros((1, 24), np.float32), np.zeros((1, 24), np.float32)
    two[0, [3, 7, 11, 20]] = 1
    for logits in (equal, two):
        check(logits, routing)
    ids, weights, _ = routed(equal, routing)
    np.testing.assert_array_equal(ids[0], range(5))
    assert len(set(weights[0].tolist())) == 1


def test_a_bias_changes_the_choice_but_not_the_weights() -> None:
    logits, bias = np.array([[2, 1, 0, -1]], np.float32), np.array([-9, 0, 0, 9], np.float32)
    ids, weights, _ = routed(logits, Routing(4, 2, "sigmoid"), choice_bias=bias)
    np.testing.assert_array_equal(ids, [[3, 1]])
    np.testing.assert_allclose(weights, 1 / (1 + np.exp([[1, -1]])), rtol=1e-6)


def test_tiny_weights_are_not_divided_by_nothing() -> None:
    """Where the sum of sigmoids is below 2^-14, which bounds the divisor."""
    check(np.full((2, 6), -80, np.float32), Routing(6, 2, "sigmoid", normalised=True))
    check(np.array([[40, -40, 0]], np.float32), Routing(3, 3, normalised=True))


@pytest.mark.parametrize("routing", ROUTINGS[1:])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_tokens_without_finite_logits_take_the_lowest_experts(
    routing: Routing, value: float
) -> None:
    """With weights NaN, while other tokens of the pass choose as ever."""
    for n_tokens in TOKENS:
        logits = normal(n_tokens, routing.n_experts)
        logits[n_tokens // 2, routing.n_experts - 1] = value
        ids, weights, out = routed(logits, routing)
        np.testing.assert_array_equal(ids[n_tokens // 2], range(routing.n_used))
        assert np.isnan(weights[n_tokens // 2]).all()
        assert np.isnan(out).tolist() == [t == n_tokens // 2 for t in range(n_tokens)]
        bias = np.zeros(routing.n_experts, np.float32)
        bias[0] = np.nan
        ids, _, out = routed(normal(n_tokens, routing.n_experts), routing, choice_bias=bias)
        np.testing.assert_array_equal(ids, [list(range(routing.n_used))] * n_tokens)
        assert np.isnan(out).all()


def test_pairs_are_sorted_by_expert() -> None:
    """Each expert that was chosen is one run, its tokens in order; experts 1 and 4 have none."""
    logits = np.full((6, 5), -9, np.float32)
    for t, pair in enumerate([(0, 3), (3, 2), (0, 2), (3, 0), (3, 2), (2, 3)]):
        logits[t, pair] = 1, 0
    routing = Routing(5, 2)
    ones = np.ones((5, 1, 1), np.float32).view(np.uint8)
    matrix = ExpertMatrix.prepare(QUANT_TYPES["F32"], ones, 1)
    scratch, out = ExpertsScratch(routing, 1, 1, 6), np.empty((6, 1), np.float32)
    act = Activations(6, 1).set(np.ones((6, 1), np.float32))
    experts(act, logits, ExpertWeights(routing, "silu", matrix, matrix, matrix), scratch, out)
    pairs = scratch.pairs
    assert pairs.n_chosen[0] == 3
    np.testing.assert_array_equal(pairs.chosen[:3], [0, 2, 3])
    np.testing.assert_array_equal(pairs.starts[:4], [0, 3, 7, 12])
    np.testing.assert_array_equal(pairs.tokens, [0, 2, 3, 1, 2, 4, 5, 0, 1, 3, 4, 5])
    np.testing.assert_array_equal(pairs.experts, [0, 0, 0, 2, 2, 2, 2, 3, 3, 3, 3, 3])
    np.testing.assert_array_equal(pairs.experts[pairs.places], pairs.ids)
    np.testing.assert_array_equal(pairs.tokens[pairs.places], np.arange(6)[:, None].repeat(2, 1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"n_experts": 0}, "found 0 experts, expected 1 to 1024"),
        ({"n_experts": 1025}, "found 1025 experts"),
        ({"n_used": 0}, "found 0 used experts, expected 1 to 8"),
        ({"n_used": 9}, "found 9 used experts"),
        ({"scores": "tanh"}, "found scores 'tanh', expected one of softmax"),
        ({"n_groups": 3}, "found 3 groups, expected a divisor of 8 experts"),
        ({"n_groups": 0}, "found 0 groups"),
        ({"n_groups": 4, "n_used": 3, "n_groups_used": 1}, "found 1 used groups, expected 2 to 4"),
        ({"n_groups": 4, "n_groups_used": 5}, "found 5 used groups"),
    ],
)
def test_counts_that_do_not_fit_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(OpsError, match=words):
        Routing(**{"n_experts": 8, "n_used": 2, **values})
