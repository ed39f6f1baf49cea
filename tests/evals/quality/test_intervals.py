"""Intervals: closed forms, printed tables, and how often they hold what they should."""

import math
import random
from collections.abc import Callable

import pytest

from kvarn.evals.quality.intervals import (
    Clusters,
    Interval,
    difference_interval,
    mean,
    score_interval,
    t_cdf,
    t_quantile,
    variance,
)

TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 9: 2.2622, 19: 2.0930, 30: 2.0423, 38: 2.0244,
         99: 1.9842}  # fmt: skip
"""Two-sided 95% quantiles of Student's t, as printed in any table."""


@pytest.mark.parametrize("t", [-3.0, -0.1, 0.0, 0.5, 2.0, 40.0])
def test_students_t_has_its_closed_forms(t: float) -> None:
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-14)
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-14)
    x = t / math.sqrt(3)
    third = 0.5 + (x / (1 + x * x) + math.atan(x)) / math.pi
    assert t_cdf(t, 3) == pytest.approx(third, abs=1e-14)


@pytest.mark.parametrize("degrees", TABLE)
def test_quantiles_are_those_of_the_tables(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(TABLE[degrees], abs=5e-5)


def test_the_variance_is_that_of_a_mean_where_contexts_have_one_question() -> None:
    scores = [0.0, 1.0, 1.0, 0.5, 0.25]
    centre = sum(scores) / 5
    expected = sum((s - centre) ** 2 for s in scores) / 4 / 5
    assert variance([[s] for s in scores], centre) == pytest.approx(expected)


def test_the_variance_counts_questions_that_go_together() -> None:
    apart = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    together = [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert variance(apart, 0.5) == 0
    assert variance(together, 0.5) == pytest.approx(4 / 3 * 4 * 1**2 / 8**2)


def test_a_perfect_score_has_wilsons_interval() -> None:
    low, high = score_interval([[1.0] * 10] * 20)  # type: ignore[misc]
    assert high == pytest.approx(1)
    assert low == pytest.approx(1 / (1 + 2.0930**2 / 200), abs=1e-5)
    assert score_interval([[0.0] * 10] * 20) == pytest.approx((1 - low, 0.0)[::-1])


def test_equal_answers_leave_room_for_a_difference() -> None:
    low, high = difference_interval([[0.0] * 10] * 20)  # type: ignore[misc]
    assert high == -low == pytest.approx(2.0930 * math.sqrt(2) / 202, rel=1e-4)


def test_one_context_says_nothing_about_others() -> None:
    assert score_interval([[1.0, 0.0]]) is None
    assert difference_interval([[1.0, 0.0]]) is None


def coverage(
    draw: Callable[[random.Random], Clusters], truth: float,
    interval: Callable[[Clusters], Interval | None], times: int = 800,
) -> float:  # fmt: skip
    rng = random.Random(0)
    n_covered = 0
    for _ in range(times):
        limits = interval(draw(rng))
        assert limits is not None
        n_covered += limits[0] <= truth <= limits[1]
    return n_covered / times


def drawn(rng: random.Random, p: float, alike: float, contexts: int, n: int) -> list[list[float]]:
    """Right answers with probability p; those of one context correlate by `alike`."""
    clusters = []
    for _ in range(contexts):
        each = rng.betavariate(p * (1 / alike - 1), (1 - p) * (1 / alike - 1)) if alike else p
        clusters.append([float(rng.random() < each) for _ in range(n)])
    return clusters


@pytest.mark.parametrize(
    ("p", "alike", "contexts", "n"),
    [
        (0.5, 0.3, 20, 10),
        (0.9, 0.1, 20, 10),
        (0.9, 0.0, 20, 1),
        (0.98, 0.02, 20, 25),
        (0.8, 0.05, 5, 20),
    ],
)
def test_95_of_100_intervals_hold_the_score(p: float, alike: float, contexts: int, n: int) -> None:
    share = coverage(lambda rng: drawn(rng, p, alike, contexts, n), p, score_interval)
    assert 0.93 <= share <= 0.995


@pytest.mark.parametrize(("p", "lost"), [(0.9, 0.05), (0.99, 0.01), (0.7, 0.3)])
def test_at_least_95_of_100_intervals_hold_the_difference(p: float, lost: float) -> None:
    """One method answers with p, in contexts that differ; another loses some of these answers."""

    def draw(rng: random.Random) -> Clusters:
        return [
            [-s * (rng.random() < lost) for s in context] for context in drawn(rng, p, 0.1, 20, 10)
        ]

    assert coverage(draw, -p * lost, difference_interval) >= 0.93


TASKS = [(0.97, 0.05, 4, 25), (0.6, 0.3, 20, 10), (0.8, 0.0, 10, 1)]
"""p, likeness, contexts and questions of three tasks."""


def test_over_tasks_each_counts_the_same() -> None:
    tasks = [[[1.0] * 30, [1.0] * 10], [[0.0], [1.0], [1.0], [0.0]]]
    low, high = score_interval(*tasks)  # type: ignore[misc]
    # The first task's mean does not vary; 4/3 · 4 · (1/2)² / 4² of the second counts a quarter.
    p, t, m = 0.75, TABLE[3], 0.75 * 0.25 / (4 / 3 * 4 * 0.25 / 16 / 4)
    centre = (p + t * t / (2 * m)) / (1 + t * t / m)
    assert (low + high) / 2 == pytest.approx(centre, abs=1e-5)
    pairs = [[[0.0] * 10] * 20] * 2
    low, high = difference_interval(*pairs)  # type: ignore[misc]
    assert high == -low == pytest.approx(TABLE[38] * math.sqrt(2 * 2) / 202 / 2, rel=1e-4)


def test_95_of_100_intervals_hold_the_mean_over_tasks() -> None:
    rng = random.Random(1)
    truth = sum(task[0] for task in TASKS) / len(TASKS)
    n_covered = 0
    for _ in range(800):
        limits = score_interval(*(drawn(rng, *task) for task in TASKS))
        assert limits is not None
        n_covered += limits[0] <= truth <= limits[1]
    assert 0.93 <= n_covered / 800 <= 0.995


def test_95_of_100_intervals_hold_the_mean_difference_over_tasks() -> None:
    rng, n_covered = random.Random(2), 0
    for _ in range(800):
        tasks = [
            [[-s * (rng.random() < 0.05) for s in context] for context in drawn(rng, *task)]
            for task in TASKS
        ]
        limits = difference_interval(*tasks)
        assert limits is not None
        n_covered += limits[0] <= -0.05 * sum(task[0] for task in TASKS) / len(TASKS) <= limits[1]
    assert n_covered / 800 >= 0.93


def test_one_context_of_a_task_says_nothing_about_all() -> None:
    assert score_interval([[1.0], [0.0]], [[1.0, 0.0]]) is None
    assert difference_interval([[1.0], [0.0]], [[1.0, 0.0]]) is None


def test_pairs_are_closer_than_scores_where_contexts_are_what_differs() -> None:
    first = drawn(random.Random(3), 0.7, 0.5, 20, 20)
    second = [[s * (i > 0) for i, s in enumerate(context)] for context in first]
    pairs = [[b - a for a, b in zip(*both)] for both in zip(first, second)]
    alone, paired = score_interval(first), difference_interval(pairs)
    assert alone is not None and paired is not None
    assert paired[1] - paired[0] < 0.3 * (alone[1] - alone[0])
    assert mean(pairs) == pytest.approx(mean(second) - mean(first))
