"""What NaCl keeps by scores that are given: shares of the budget, and lots."""

from __future__ import annotations

import numpy as np
import pytest

import kvarn


def test_tokens_are_drawn_by_the_softmax_of_their_scores() -> None:
    """NaCl: of 9 tokens the best stays, then two are drawn without return; over 5,000 seeds."""
    scores = np.linspace(1.5, 0, 9, dtype=np.float32)
    for random in ("scores", "uniform"):
        weights = np.exp(scores[1:].astype(float)) if random == "scores" else np.ones(8)
        keep, counts = kvarn.NaCl(3, random=random), np.zeros((9, 9))
        assert keep.shares(9, 3) == (0, 1, 2, 0)
        for seed in range(5000):
            best, one, two = keep.choose(scores[None], 3, (seed, 9))[0].tolist()
            assert best == 0
            counts[one, two] += 1
        p = weights / weights.sum()
        pairs = np.outer(p, p) / (1 - p)[:, None]  # one, then the other
        wanted = 5000 * (pairs + pairs.T)[np.triu_indices(8, 1)]
        found = counts[1:, 1:][np.triu_indices(8, 1)]
        assert found.sum() == 5000
        chi = float(((found - wanted) ** 2 / wanted).sum())
        assert chi < 55.5, (random, chi)  # chi-square, 27 degrees of freedom: p = 0.001


def test_heads_and_layers_draw_for_themselves() -> None:
    scores = np.zeros((2, 400), np.float32)
    own, same = kvarn.NaCl(80), kvarn.NaCl(80, heads="same")
    a, b = own.choose(scores, 80, (0, 400))
    assert a.tolist() != b.tolist()
    assert own.choose(scores, 80, (1, 400))[0].tolist() != a.tolist()
    a, b = same.choose(scores, 80, (0, 400))
    assert a.tolist() == b.tolist()
    for keep in (kvarn.NaCl(80), kvarn.KeepRandom(80)):
        np.testing.assert_array_equal(
            keep.choose(scores, 80, (0, 400)), keep.choose(scores, 80, (0, 400))
        )


@pytest.mark.parametrize(
    ("percent", "proxies", "newest", "best"),
    [(10, 400, 100, 200), (20, 2000, 200, 600), (30, 2150, 150, 1050), (15, 1200, 150, 400),
     (25, 2075, 175, 825), (5, 400, 50, 100), (60, 2150, 300, 2100)],
)  # fmt: skip
def test_shares_are_those_of_table_4(percent: int, proxies: int, newest: int, best: int) -> None:
    n, keep, budget = 10_000, kvarn.NaCl(), 100 * percent
    assert keep.n_proxies(n, budget) == proxies
    assert keep.shares(n, budget) == (newest, best, budget - newest - best, 0)


@pytest.mark.parametrize(
    ("n", "proxies", "sinks", "newest", "best", "drawn"),
    [(131_072, 1311, 256, 1055, 15_728, 9_175), (8192, 82, 16, 66, 983, 573)],
)
def test_the_code_has_other_settings(
    n: int, proxies: int, sinks: int, newest: int, best: int, drawn: int
) -> None:
    """NaCl's code at 20%: proxies 1%, protected 1% (256 sinks among 128K tokens), 12%, 7%."""
    keep, budget = kvarn.NaCl(settings="code"), n // 5
    assert keep.n_proxies(n, budget) == proxies
    assert kvarn.NaCl(settings="code", proxies=9).n_proxies(n, budget) == 9
    shares = keep.shares(n, budget)
    assert shares == pytest.approx((newest, best, drawn, sinks), abs=1) and sum(shares) == budget
    if n == 8192:
        scores = np.random.default_rng(3).normal(size=(1, n)).astype(np.float32)
        (kept,) = keep.choose(scores, budget, (0, n))
        assert len(set(kept.tolist())) == budget and (np.diff(kept) > 0).all()
        assert kept[:sinks].tolist() == list(range(sinks))
        assert kept[-newest:].tolist() == list(range(n - newest, n))
        between = scores[0, sinks : n - newest]
        assert set(np.argsort(-between)[:best] + sinks) <= set(kept.tolist())


def test_proxies_are_a_share_of_the_prompt_or_a_number() -> None:
    """NaCl, figure 5: from a single one to all; never more than there are, never none."""
    for given, found in (("10%", 400), ("100%", 4000), ("16", 16), ("9000", 4000), ("0.001%", 1)):
        assert kvarn.NaCl(800, proxies=given).n_proxies(4000, 800) == found
    for wrong in ("", "0", "-3", "0%", "101%", "many"):
        with pytest.raises(kvarn.KvarnError, match=f"keep nacl: proxies is '{wrong}', expected"):
            kvarn.NaCl(800, proxies=wrong)
