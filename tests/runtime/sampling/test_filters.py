"""Each filter alone against its definition, written out slowly."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.sampling import Sampler, SamplingError
from kvarn.runtime.sampling.candidates import Candidates, log_softmax, softmax
from kvarn.runtime.sampling.filters import min_p, temperature, top_k, top_p, typical_p
from kvarn.runtime.sampling.penalties import History, penalise

# Rounded, so that ties are common; sizes around the blocks of top_k.
LOGITS = st.builds(
    lambda seed, size, spread: np.round(
        np.random.default_rng(seed).normal(0, spread, size), 1
    ).astype(np.float32),
    st.integers(0, 10_000),
    st.sampled_from([1, 2, 39, 127, 128, 129, 257, 1000, 5000]),
    st.sampled_from([0.1, 1.0, 5.0]),
)


def falling(logits: np.ndarray) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


@given(LOGITS, st.integers(-1, 6000))
def test_top_k_is_the_head_of_a_sort(logits: np.ndarray, k: int) -> None:
    kept = top_k(Candidates.of(logits), k)
    if k <= 0:
        assert len(kept) == len(logits)
        return
    assert kept.ids.tolist() == falling(logits)[:k]
    assert kept.logits.tolist() == logits[kept.ids].tolist()
    assert kept.ordered
    assert top_k(kept, 3).ids.tolist() == falling(logits)[: min(k, 3)]


@given(LOGITS, st.floats(0, 1), st.booleans())
def test_top_p_is_the_shortest_head_that_reaches_p(
    logits: np.ndarray, p: float, ordered: bool
) -> None:
    candidates = Candidates.of(logits)
    if ordered:
        candidates = top_k(candidates, len(logits))
    kept = top_p(candidates, p)
    order = falling(logits)
    assert sorted(kept.ids.tolist()) == sorted(order[: len(kept)])
    probs = softmax(logits).astype(np.float64)
    slack = 1e-5  # float32 probabilities
    if p < 1:
        assert probs[order[: len(kept)]].sum() >= p - slack
        assert probs[order[: len(kept) - 1]].sum() <= p + slack


@given(LOGITS, st.floats(0, 1), st.booleans())
def test_min_p_compares_with_the_best(logits: np.ndarray, p: float, ordered: bool) -> None:
    candidates = Candidates.of(logits)
    if ordered:
        candidates = top_k(candidates, len(logits))
    kept = min_p(candidates, p)
    probs = np.exp(logits.astype(np.float64) - logits.max())
    assert set(np.flatnonzero(probs >= p * (1 + 1e-5))) <= set(kept.ids.tolist())
    assert set(kept.ids.tolist()) <= set(np.flatnonzero(probs >= p * (1 - 1e-5)))


@given(LOGITS, st.floats(0, 0.99))
def test_typical_p_takes_the_least_surprising_surprises(logits: np.ndarray, p: float) -> None:
    kept = typical_p(Candidates.of(logits), p)
    logs = log_softmax(logits)
    probs = np.exp(logs)
    distance = np.abs(-logs + np.sum(probs * logs))
    outside = np.setdiff1d(np.arange(len(logits)), kept.ids)
    if outside.size:
        assert distance[kept.ids].max() <= distance[outside].min() + 1e-3
        assert probs[kept.ids].sum() > p - 1e-5
    assert probs[kept.ids[:-1]].sum() <= p + 1e-5


def test_typical_p_copes_with_impossible_tokens() -> None:
    logits = np.array([1, -np.inf, 1, -200], np.float32)
    assert sorted(typical_p(Candidates.of(logits), 0.9).ids) == [0, 2]


def test_temperature_scales_and_zero_is_greedy() -> None:
    candidates = Candidates.of(np.array([1, 4, 2], np.float32))
    assert temperature(candidates, 2.0).logits.tolist() == [0.5, 2.0, 1.0]
    for tiny in (1e-30, 1e-45, 1e-300):
        assert softmax(temperature(candidates, tiny).logits).tolist() == [0, 1, 0]
    assert temperature(candidates, 0.0).ids.tolist() == [1]


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(-1, 10))
def test_history_counts_its_window(tokens: list[int], n: int) -> None:
    history = History(n)
    history.add(tokens)
    window = tokens if n < 0 else tokens[len(tokens) - min(n, len(tokens)) :]
    assert dict(history.counts) == Counter(window)


def test_penalties_follow_their_formula() -> None:
    logits = np.array([2, -2, 0, 5], np.float32)
    options = Sampler(repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    out = penalise(Candidates.of(logits), {0: 3, 1: 1}, options).logits
    assert out.tolist() == [2 / 2 - 0.75 - 0.5, -2 * 2 - 0.25 - 0.5, 0, 5]
    assert logits.tolist() == [2, -2, 0, 5]


def test_extreme_logits_stay_finite() -> None:
    logits = np.array([3e38, -3e38, 3e38], np.float32)
    assert softmax(logits).tolist() == [0.5, 0, 0.5]
    assert np.isclose(log_softmax(logits)[0], np.log(0.5))


@pytest.mark.parametrize("shape", [(0,), (2, 3)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SamplingError, match="shape"):
        Candidates.of(np.zeros(shape, np.float32))
