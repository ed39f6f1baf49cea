"""Coverage against NumPy: the fewest tokens whose softmax reaches a share."""

import numpy as np
import pytest

from kvarn.ops.attention.arguments import Scoring
from kvarn.ops.errors import OpsError
from kvarn.ops.reference.select import best_reference
from kvarn.ops.select import ExactScratch, Lists, Range, Wanted, largest
from lab.methods.cover.api import SAMPLE, CoverScratch, SoftmaxBudget, cover, draw_sample, totals_of

from ...thread_counts import with_threads

SEED = 5
N, AMONG = 3000, Range(4, 2950, 3000)


def scores_of(cache, q, scoring: Scoring) -> np.ndarray:
    """Scores (H, S) of all stored tokens, in float64."""
    keys, group = cache.stored()[0].astype(np.float64), q.shape[1] // cache.n_kv_heads
    products = np.stack([keys[:, h // group] @ q[0, h] for h in range(q.shape[1])])
    s = scoring.scale * products
    return scoring.softcap * np.tanh(s / scoring.softcap) if scoring.softcap else s


def chosen(cache, q, k: int, scoring: Scoring) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists, counts and totals of the k largest products of each head."""
    n, heads = cache.n_kv_heads, q.shape[1]
    lists, counts = np.zeros((n, N), np.uint32), np.zeros(n, np.int64)
    scratch = ExactScratch(heads, n, N, k, cache.layout)
    wanted = Wanted(k, k, SEED)
    largest(q, cache.segments, AMONG, wanted, Lists(lists, counts), scratch=scratch)
    return lists, counts, totals_of(q, cache.segments, AMONG, scoring, scratch)


def shorten(cache, q, lists, counts, k: int, share: float, scoring: Scoring, **known) -> list:
    lists, counts = lists.copy(), counts.copy()
    scratch = CoverScratch(q.shape[1], cache.n_kv_heads, N, N, cache.layout)
    cover(
        q, cache.segments, AMONG, SoftmaxBudget(share, k, SEED), Lists(lists, counts),
        scoring=scoring, scratch=scratch, **known,
    )  # fmt: skip
    return [one[:n].tolist() for one, n in zip(lists, counts)]


def fewest(scores, total: float, listed: list[int], k: int, share: float) -> set[int]:
    """The paper's words in NumPy: best tokens of the list until they hold the share."""
    inside = [t for t in listed if AMONG.first <= t < AMONG.last]
    always = [t for t in range(AMONG.stop) if not AMONG.first <= t < AMONG.last]
    best = sorted(inside, key=lambda t: -scores[t])
    mass, taken = np.exp(scores[always]).sum(), []
    for t in best[:k]:
        if mass >= share * total:
            break
        taken.append(t)
        mass += np.exp(scores[t])
    return {*always, *taken}


SCORINGS = [Scoring(0.125, 0.0), Scoring(0.5, 0.0), Scoring(0.3, 2.0)]


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize(("kind", "heads", "n_kv_heads"), [("q8_0", 8, 2), ("f16", 3, 3)])
def test_known_totals_give_the_fewest(
    make_cache, queries, kind: str, heads: int, n_kv_heads: int, scoring: Scoring
) -> None:
    cache, q = make_cache(64, kind, kind, n_kv_heads, N), queries(1, heads, 64)
    scores = scores_of(cache, q, scoring)
    for k, share in ((400, 0.3), (400, 0.7), (50, 0.9), (400, 1e-6), (400, 1.0)):
        lists, counts, totals = chosen(cache, q, k, scoring)
        inside = scores[:, AMONG.first : AMONG.last]
        np.testing.assert_allclose(totals[:, 0], inside.max(1), rtol=1e-5)
        want = np.exp(inside - totals[:, :1]).sum(1)
        np.testing.assert_allclose(totals[:, 1], want, rtol=1e-5)
        got = shorten(cache, q, lists, counts, k, share, scoring, totals=totals)
        for j, tokens in enumerate(got):
            listed, want = lists[j, : counts[j]].tolist(), set()
            for h in range(j * heads // n_kv_heads, (j + 1) * heads // n_kv_heads):
                want |= fewest(scores[h], np.exp(scores[h]).sum(), listed, k, share)
            assert tokens == sorted(want)


def test_a_sample_estimates_the_rest(make_cache, queries) -> None:
    cache, q = make_cache(80, "q4_0", "q4_0", 2, N), queries(1, 10, 80)
    scoring = Scoring(0.2, 0.0)
    scores, k = scores_of(cache, q, scoring), 200
    lists, counts, _ = chosen(cache, q, k, scoring)
    sample, step = draw_sample(AMONG, SEED), (AMONG.last - AMONG.first) / SAMPLE
    for share in (0.2, 0.5):
        got = shorten(cache, q, lists, counts, k, share, scoring)
        for j, tokens in enumerate(got):
            listed, want = lists[j, : counts[j]].tolist(), set()
            others = sample[~np.isin(sample, listed)]
            for h in range(5 * j, 5 * j + 5):
                total = np.exp(scores[h][listed]).sum() + step * np.exp(scores[h][others]).sum()
                want |= fewest(scores[h], total, listed, k, share)
            assert len(want ^ {*tokens}) <= 1  # where a sum is within rounding of the share


def test_samples_draw_every_token_alike() -> None:
    among, n, drawn = Range(10, 1810, 1900), 1800, np.zeros(1900)
    for seed in range(3000):
        sample = draw_sample(among, seed)
        assert len(sample) == SAMPLE and (np.diff(sample.astype(int)) >= 0).all()
        np.add.at(drawn, sample, 1)
    assert not drawn[:10].any() and not drawn[1810:].any()
    expected = 3000 * SAMPLE / n
    # Strata that share a token draw it independently: no more variance than a binomial.
    assert np.abs(drawn[10:1810] - expected).max() < 5 * np.sqrt(expected)
    assert draw_sample(Range(3, 90, 100), 0).tolist() == [*range(3, 90)]


def test_the_estimate_is_unbiased() -> None:
    rng, among = np.random.default_rng(0), Range(0, 5000, 5001)
    mass = np.exp(rng.standard_normal(5000))
    estimates = np.array([5000 / SAMPLE * mass[draw_sample(among, s)].sum() for s in range(2000)])
    error = estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - mass.sum()) < 3 * error


def test_equal_scores_are_taken_by_the_hash_of_the_position(make_cache) -> None:
    cache, q = make_cache(64, "q8_0", "q8_0", 1, N), np.zeros((1, 4, 64), np.float32)
    lists, counts, totals = chosen(cache, q, 500, SCORINGS[0])
    got = shorten(cache, q, lists, counts, 500, 0.125, SCORINGS[0], totals=totals)[0]
    n_always = N - (AMONG.last - AMONG.first)
    n_among = AMONG.last - AMONG.first
    none = np.zeros(n_among, np.bool_)
    want = best_reference(np.zeros(n_among), AMONG.first, N // 8 - n_always, SEED, none)
    assert [t for t in got if AMONG.first <= t < AMONG.last] == sorted(want)


def test_one_thread_gives_the_same_lists(make_cache, queries) -> None:
    cache, q, scoring = make_cache(64, "q8_0", "q8_0", 2, N), queries(1, 8, 64), SCORINGS[0]
    results = []
    for _ in with_threads(1, 2):
        lists, counts, totals = chosen(cache, q, 100, scoring)
        results.append((totals, shorten(cache, q, lists, counts, 100, 0.2, scoring)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_refuses_in_words(make_cache, queries) -> None:
    cache, scoring = make_cache(64, "q8_0", "q8_0", 1, N), SCORINGS[0]
    q = queries(1, 4, 64)
    lists, counts, totals = chosen(cache, q, 20, scoring)
    for words, bad in {
        "share is 0": (q, lists, counts, 20, 0.0),
        "q is": (queries(1, 4, 32), lists, counts, 20, 0.5),
        "lists are int64": (q, lists.astype(np.int64), counts, 20, 0.5),
    }.items():
        with pytest.raises(OpsError, match=words):
            shorten(cache, *bad, scoring)
    with pytest.raises(OpsError, match="totals are"):
        shorten(cache, q, lists, counts, 20, 0.5, scoring, totals=totals[:1])
