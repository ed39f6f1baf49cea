"""Half of the budget drawn at random: the formula in NumPy over what is stored."""

import numpy as np
import pytest

from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.ops.select import Range
from kvarn.runtime.attend import AttendError, TopK
from lab.methods import Sampled
from lab.methods.sampled import with_draws

from ...runtime.attend import test_tails
from ...runtime.attend.test_tails import COMMON, ChoiceSpy, read

SAMPLES = [Sampled(index=index, **COMMON) for index in ("flat", "sketch")]


@pytest.mark.parametrize("method", SAMPLES, ids=lambda m: m.index)
def test_a_step_with_a_sample_is_the_formula(model, method) -> None:
    best = ChoiceSpy(TopK(index=method.index, **{**COMMON, "budget": 20}))
    spy = ChoiceSpy(method)
    for one in (spy, best):
        read(model, one, steps=1)
    for index, (layer, q, stop, out) in spy.calls.items():
        lists, counts, weights = spy.chosen[index]
        keys, values = read_kv(layer.store.segments(index), layer.store.layout, 2, 0, stop)
        want = gathered_reference(
            q, keys, values, lists, counts, softmax=layer.softmax, log_weights=weights
        )
        np.testing.assert_allclose(out, want, atol=2e-6)
        for j in range(2):
            listed, own = lists[j, : counts[j]], weights[2 * j : 2 * j + 2, : counts[j]]
            assert (np.diff(listed.astype(int)) > 0).all()
            drawn = own[0] > 0
            assert drawn.sum() == 2 * (40 // 2 // 2)
            assert not drawn[:4].any()
            assert not drawn[-16:].any()
            left = stop - (~drawn).sum()
            assert own[:, drawn] == pytest.approx(np.log(left / drawn.sum()))
            assert not own[:, ~drawn].any()
            if index == 0:  # the inputs of other layers depend on what was read
                chosen, n, _ = best.chosen[0]
                np.testing.assert_array_equal(listed[~drawn], chosen[j, : n[j]])


def test_draws_are_uniform_over_what_is_not_listed() -> None:
    among, rng = Range(3, 40, 50), np.random.default_rng(1)
    listed = np.r_[0:3, 5, 6, 7, 20, 39, 40:50].astype(np.uint32)
    rest = np.setdiff1d(np.arange(50), listed)
    seen, rounds = np.zeros(50), 4000
    for _ in range(rounds):
        tokens, weights = with_draws(listed, among, 8, rng)
        assert np.isin(listed, tokens).all()
        assert len(np.unique(tokens)) == len(listed) + 8
        assert (weights > 0).sum() == 8
        seen[tokens[weights > 0]] += 1
    assert not seen[listed].any()
    expected = rounds * 8 / len(rest)
    # Hypergeometric: each token's count varies by (1 - 8 / 32) of a binomial one.
    chi_square = ((seen[rest] - expected) ** 2).sum() / expected / (1 - 8 / len(rest))
    assert chi_square < 61.1  # of 31 degrees of freedom: 1 in 1,000
    tokens, weights = with_draws(listed, among, 1000, rng)
    np.testing.assert_array_equal(tokens, np.arange(50))
    assert not weights.any()
    everything = np.arange(50, dtype=np.uint32)
    np.testing.assert_array_equal(with_draws(everything, among, 8, rng)[0], everything)


@pytest.mark.parametrize("method", SAMPLES, ids=lambda m: m.index)
def test_a_budget_of_the_whole_context_gives_the_bits_of_full(model, method) -> None:
    test_tails.test_a_budget_of_the_whole_context_gives_the_bits_of_full(model, method)


def test_one_thread_gives_the_same_bits(model) -> None:
    test_tails.test_one_thread_gives_the_same_bits(model, SAMPLES[1])


def test_another_tail_is_refused_in_words() -> None:
    with pytest.raises(AttendError, match="tail is means, expected none"):
        Sampled(tail="means")
    assert Sampled().needs_all_tokens and Sampled().host_only == "attend sampled"
