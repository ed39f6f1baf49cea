"""How long drafts of a model are: as pays by acceptance and by what passes take."""

import math
from itertools import pairwise

import pytest

from kvarn.runtime.draft.lengths import (
    FIRST_WAIT,
    LONGEST_WAIT,
    PRIOR_TRIES,
    TRIAL,
    Lengths,
    PassTimes,
    Share,
)
from kvarn.runtime.draft.pass_times import cost


def lengths(drafting: float, verifying: float = 1.0) -> Lengths:
    """After passes that take so many seconds for a token, and `cost` for a few."""
    measured = Lengths(drafting / verifying)
    for _ in range(3):
        measured.drafting.add(1, drafting)
        for n in range(1, 5):
            measured.verifying.add(n, verifying * cost(n))
    return measured


def learn(measured: Lengths, drafted: list[int], tokens: list[int]) -> None:
    measured.learn(drafted, [0.7] * len(drafted), tokens)


def speed(n: int, rate: float, drafting: float) -> float:
    expected = sum(rate**i for i in range(n + 1))
    return expected / (n * drafting + cost(n + 1))


def with_rate(measured: Lengths, rate: float) -> Lengths:
    """After so many guesses that exactly this share of them was right, at any probability."""
    measured._all = Share(PRIOR_TRIES, rate)
    return measured


@pytest.mark.parametrize("drafting", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9, 0.99])
def test_the_length_with_the_most_tokens_per_second_is_taken(drafting: float, rate: float) -> None:
    best = max(range(17), key=lambda n: speed(n, rate, drafting))
    n = with_rate(lengths(drafting), rate).best(16)
    assert n == (best if speed(best, rate, drafting) > 1.05 else 0)


def test_costlier_drafts_are_shorter_and_one_as_costly_as_the_model_is_never_made() -> None:
    found = [with_rate(lengths(d), 0.9).best(32) for d in (0.001, 0.05, 0.2, 0.4, 1)]
    assert all(a >= b for a, b in pairwise(found))
    assert found[0] > found[2] > found[-1] == 0
    costly = lengths(1)
    for _ in range(5000):
        assert costly.next(16) == (0, 0)
        costly.learn((), (), [1])


def test_until_passes_are_measured_the_sizes_of_files_decide() -> None:
    """Then as many are drafted as one step of the kernels verifies."""
    assert [with_rate(Lengths(ratio), 0.9).best(16) for ratio in (0.05, 0.3, 1.0)] == [3, 3, 0]


def test_wrong_guesses_end_drafts_which_are_tried_again_more_and_more_rarely() -> None:
    measured, tries, n_tokens = lengths(0.05), [], 0
    assert measured.next(16) == (0, 16)
    while n_tokens < 3000:
        least, n = measured.next(16)
        if n and n_tokens > 100:
            tries.append(n_tokens)
            assert least == n <= TRIAL
        learn(measured, [1] * n, [2])
        n_tokens += 1
    gaps = [b - a for a, b in pairwise(tries)]
    assert len(gaps) > 2
    assert all(b >= 2 * a - 1 for a, b in pairwise(gaps))
    assert gaps[0] >= FIRST_WAIT
    # Then they are right: after a trial or two, drafts are made again.
    for _ in range(20):
        learn(measured, [1] * TRIAL, [1] * (TRIAL + 1))
    assert measured.next(16) == (0, 16)


def test_guesses_after_the_first_wrong_one_do_not_count() -> None:
    measured = lengths(0.1)
    before = measured.rate
    learn(measured, [1, 2, 3, 4], [1, 9])
    assert measured.rate == pytest.approx(
        (before * 8 * (63 / 64) ** 2 + 63 / 64) / (8 * (63 / 64) ** 2 + 63 / 64 + 1)
    )


def test_the_shortest_of_the_recent_passes_counts_and_the_first_does_not() -> None:
    times = PassTimes()
    times.add(1, 100.0)
    assert not times.are_known
    for seconds in (3.0, 2.0, 9.0):
        times.add(1, seconds)
    assert times.of(1) == 2
    assert times.of(8) == pytest.approx(2 * cost(8) / cost(1))
    for _ in range(3):
        times.add(7, 5.0)  # counts as 8: kernels take 4 tokens at a time
    assert (times.of(8), times.of(5), times.of(1)) == (5, 5, 2)
    for _ in range(8):
        times.add(1, 4.0)
    assert times.of(1) == 4


def test_sizes_up_to_4_are_tried_before_they_are_judged() -> None:
    measured = Lengths(0.1)
    for _ in range(2):
        measured.drafting.add(1, 0.1)
        measured.verifying.add(1, 1.0)
    for n_tokens, seconds in ((2, 1.5), (3, 1.6), (4, 2.9)):
        assert measured.verifying.of(n_tokens) <= 1.6
        for _ in range(2):
            measured.verifying.add(n_tokens, seconds)
        assert measured.verifying.of(n_tokens) == seconds
    assert with_rate(measured, 0.9).best(3) == 2


def test_seconds_of_a_busy_machine_do_not_end_drafts_for_ever() -> None:
    measured, n_tokens = lengths(0.1), 0
    for n in (2, 3, 4) * 8:
        measured.verifying.add(n, 50.0)
    while not (n := measured.next(16)[1]):
        measured.learn((), (), [1])
        n_tokens += 1
    assert 0 < n <= TRIAL and n_tokens == FIRST_WAIT


def wait(measured: Lengths, each: int = 1) -> int:
    """Tokens that are generated, so many at a time, before a draft is made."""
    n_tokens = 0
    while not measured.next(16)[1]:
        measured.learn((), (), [1] * each)
        n_tokens += each
    return n_tokens


def hopeless() -> Lengths:
    """After wrong guesses alone."""
    measured = lengths(0.05)
    for _ in range(500):
        learn(measured, [1], [2])
    return measured


def test_waits_count_tokens_and_double_up_to_the_longest() -> None:
    assert wait(hopeless(), 8) == FIRST_WAIT
    measured, waits = hopeless(), []
    for _ in range(8):
        waits.append(wait(measured))
        learn(measured, [1], [2])
    doubled = [FIRST_WAIT * 2**i for i in range(8)]
    assert waits == [min(n, LONGEST_WAIT) for n in doubled] and doubled[-1] > LONGEST_WAIT


def test_after_drafts_that_pay_waits_begin_anew() -> None:
    measured = hopeless()
    for _ in range(3):
        wait(measured)
        learn(measured, [1], [2])
    for _ in range(200):
        learn(measured, [1], [1, 1])
    assert measured.next(16) == (0, 16)
    for _ in range(500):
        learn(measured, [1], [2])
    assert wait(measured) == FIRST_WAIT


def test_guesses_count_by_their_probability() -> None:
    """A model that is right where it is sure, and wrong elsewhere: only sure guesses are kept."""
    measured = lengths(0.1)
    for _ in range(200):
        measured.learn([1], [0.95], [1])
        measured.learn([1], [0.5], [2])
    assert measured.rate_of(0.92) > 0.97 and measured.rate_of(0.55) < 0.03
    assert measured.rate_of(0.7) == pytest.approx(0.675)  # as it says itself, until it is known
    sure, unsure = measured.rate_of(0.95), measured.rate_of(0.5)
    assert measured.best(16, [sure, sure, unsure]) == 2
    assert measured.best(16, [sure, sure, sure]) >= 3


@pytest.mark.parametrize("drafting", [0.05, 0.2, 0.4])
def test_guesses_that_are_not_worth_it_take_few_passes(drafting: float) -> None:
    """A draft that never gives a token much would otherwise make one guess for each, for nothing.
    Oracle: the allowance, 2% of the tokens and 4 to begin with."""
    measured, n_begun = with_rate(lengths(drafting), 0.95), 0
    for _ in range(3000):
        most = measured.next(16)[1]
        n_begun += most > 0
        measured.learn((), [0.1] if most else (), [1])
    assert 0.9 * 60 < n_begun * drafting < 64 + drafting
    for _ in range(10):
        measured.learn([1] * 3, [0.95] * 3, [1] * 4)
    assert measured.next(16) == (0, 16)


@pytest.mark.parametrize("made", range(6))
def test_passes_that_guessed_are_paid_whatever_is_verified(made: int) -> None:
    """Oracle: the speed of each length, written out."""
    rates, drafting, rate = [0.9, 0.4, 0.8, 0.2, 0.7][:made], 0.2, 0.6
    measured = with_rate(lengths(drafting), rate)

    def speed(n: int) -> float:
        chances = [*rates, *[rate] * 16]
        expected = sum(math.prod(chances[:i]) for i in range(n + 1))
        bonus = 1.05 if n == 0 else 1
        return bonus * expected / (max(n, made) * drafting + cost(n + 1))

    assert measured.best(16, rates) == max(range(17), key=speed)


def test_guesses_that_are_right_by_luck_do_not_shorten_the_waits() -> None:
    """Only drafts that fill the credit do."""
    measured, waits = lengths(0.35), []
    for _ in range(4):
        waits.append(wait(with_rate(measured, 0.3)))
        learn(measured, [1] * TRIAL, [1] * (TRIAL + 1))
        assert with_rate(measured, 0.99).next(16)[1]
        learn(measured, [1], [2])
    assert waits == [FIRST_WAIT * 2**i for i in range(4)]
    for _ in range(60):
        learn(measured, [1, 1, 1], [1, 1, 1, 1])
        assert with_rate(measured, 0.99).next(16)[1]
    assert wait(with_rate(measured, 0.3)) == FIRST_WAIT
