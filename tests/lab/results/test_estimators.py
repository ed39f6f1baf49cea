"""Estimates of attention against the formulas of the papers, over draws."""

import numpy as np
import pytest

from lab.results.estimators import (
    PlainTables,
    exact_top,
    oracle_sample,
    softmax,
    softmax_over,
)
from lab.results.shadow import relative_error

RNG = np.random.default_rng(3)
KEYS = RNG.standard_normal((400, 64)).astype(np.float32)
VALUES = RNG.standard_normal((400, 64)).astype(np.float32)
Q = (0.5 * RNG.standard_normal(64)).astype(np.float32)
SCORES = (KEYS @ Q / 8).astype(np.float32)
FULL = softmax(SCORES) @ VALUES


def test_softmax_is_that_of_scipy() -> None:
    scipy = pytest.importorskip("scipy.special", reason="the oracle, SciPy, is absent")
    np.testing.assert_allclose(softmax(SCORES), scipy.softmax(SCORES.astype(float)), rtol=1e-12)


def test_attention_to_all_tokens_is_full_attention() -> None:
    weights = softmax(SCORES)
    everything = exact_top(weights[None], 400)
    assert everything.all()
    np.testing.assert_allclose(softmax_over(everything, weights, VALUES), FULL, rtol=1e-9)


def test_the_top_is_attention_to_the_largest_weights_alone() -> None:
    chosen = np.argsort(SCORES)[-7:]
    expected = softmax(SCORES[chosen]) @ VALUES[chosen]
    weights = softmax(SCORES)
    found = softmax_over(exact_top(weights[None], 7), weights, VALUES)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("m", [1, 2, 5, 40, 399])
def test_heads_that_share_keys_read_at_most_m_of_them(m: int) -> None:
    """And with one more for each head they would read too many."""
    weights = np.stack([softmax((KEYS @ q / 8).astype(np.float32)) for q in (Q, Q[::-1])])
    order = np.argsort(-weights, axis=1)
    read = [set(order[0, :k]) | set(order[1, :k]) for k in range(1, 401)]
    expected = max((one for one in read if len(one) <= m), key=len, default=read[0])
    assert set(np.flatnonzero(exact_top(weights, m))) == expected


def test_oracle_samples_are_unbiased_and_shrink_with_the_root_of_draws() -> None:
    weights = softmax(SCORES)
    rng = np.random.default_rng(0)
    draws = [
        np.array([oracle_sample(weights, VALUES, m, rng) for _ in range(2000)]) for m in (4, 64)
    ]
    spread = [one.std(0).mean() for one in draws]
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.05)
    off = np.abs(draws[1].mean(0) - FULL) / (draws[1].std(0) / 2000**0.5)
    assert off.max() < 5  # standard errors, of 64 dimensions


def test_tables_read_keys_as_often_as_their_angle_says() -> None:
    """Over redrawn planes, the share in which a key is drawn is u of its angle."""
    p = 1 - np.arccos(KEYS @ Q / np.linalg.norm(KEYS, axis=1) / np.linalg.norm(Q)) / np.pi
    hit = p.astype(float) ** 4
    u = 1 - (1 - hit) ** 20 - 20 * hit * (1 - hit) ** 19
    counts = np.zeros(400)
    for seed in range(300):
        tables = PlainTables(4, 20, 64, seed)
        counts += (tables.codes(KEYS) == tables.codes(Q[None])).sum(1) >= 2
    error = np.abs(counts / 300 - u) / np.sqrt(u * (1 - u) / 300 + 1e-9)
    assert error.max() < 5


def test_tables_estimate_attention() -> None:
    always = np.zeros(400, np.bool_)
    outs = []
    for seed in range(60):
        tables = PlainTables(4, 40, 64, seed)
        out, read = tables.estimate(Q, KEYS, tables.codes(KEYS), SCORES, VALUES, always)
        outs.append(out)
        assert 0 < read.sum() < 400
    one = np.mean([relative_error(out[None], FULL[None]) for out in outs])
    assert relative_error(np.mean(outs, 0)[None], FULL[None]) < one / 3


def test_what_is_always_read_is_full_attention() -> None:
    tables = PlainTables(10, 2, 64, 0)
    everything = np.ones(400, np.bool_)
    out, read = tables.estimate(Q, KEYS, tables.codes(KEYS), SCORES, VALUES, everything)
    np.testing.assert_allclose(out, FULL, rtol=1e-6)
    assert read.all()
