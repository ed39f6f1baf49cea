"""The length of drafts: long where guesses are right, bounded losses where they are not."""

import pytest

from kvarn.runtime.draft.pace import ALLOWANCE, CREDIT, MOST_CREDIT, Pace
from kvarn.runtime.draft.pass_times import cost
from kvarn.runtime.stats import Stats


def test_a_pass_costs_more_for_more_tokens_but_less_for_each() -> None:
    prices = [cost(n) for n in range(1, 65)]
    assert prices[0] == 1
    assert prices == sorted(prices)
    assert cost(32) / 32 < cost(8) / 8 < 1


def test_short_matches_are_not_trusted_before_they_were_right() -> None:
    pace = Pace(2)
    assert pace.length(2, 31) == 0
    for _ in range(50):
        pace.learn(2, True)
        pace.learn(4, True)
    assert pace.length(2, 31) > 0


def test_drafts_grow_while_they_are_right_and_cease_when_they_are_wrong() -> None:
    pace, lengths = Pace(2), []
    for _ in range(8):
        lengths.append(pace.length(16, 31))
        pace.settle(lengths[-1] + 1, lengths[-1])
        for _ in range(lengths[-1]):
            pace.learn(16, True)
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (7, 31)
    for _ in range(100):
        pace.learn(16, False)
    assert pace.length(16, 31) == 0


@pytest.mark.parametrize("longest", range(9))
def test_no_draft_is_longer_than_asked(longest: int) -> None:
    pace = Pace(1)
    pace.settle(100, 0)
    assert pace.length(50, longest) <= longest


def test_failures_never_cost_more_than_the_allowance() -> None:
    """The worst case: guesses seem always right, and every draft fails."""
    pace, spent, n_drafts = Pace(2), 0.0, 0
    for n_tokens in range(1, 4001):
        pace.learn(40, True)
        drafted = pace.length(40, 31)
        pace.settle(1, drafted)
        spent += cost(drafted + 1)
        n_drafts += drafted > 0
        assert spent <= n_tokens * (1 + ALLOWANCE) + CREDIT
    assert n_drafts > 10  # the allowance is used: a text that begins to repeat is found out


def test_what_was_won_is_not_gambled_away() -> None:
    pace = Pace(2)
    for _ in range(1000):
        pace.settle(32, 31)
    spent = won = 0.0
    while drafted := pace.length(40, 31):
        pace.settle(1, drafted)
        spent += cost(drafted + 1)
        won += 1
    assert spent - won <= MOST_CREDIT


def test_what_passes_take_decides() -> None:
    """The same weak match: passes over several tokens cost hardly more than one here, and twice
    as much as they usually do there. The first of each size is not counted."""
    lengths = []
    for of_many in (1.05, 4.0):
        pace = Pace(2)
        for n in (1, 1, 4, 4):
            pace.record(n, 0.030 * (of_many if n == 4 else 1.0))
        lengths.append(pace.length(2, 3))
    assert lengths == [3, 0]


def test_statistics_say_that_no_draft_was_made() -> None:
    stats = Stats(draft_seconds=0.5)
    assert "drafted nothing, as no draft would have paid, " in str(stats)
    stats.add_draft(4)
    assert "drafted 4 tokens for 1 passes" in str(stats)
