"""Counts and budgets: one grammar for all front ends. Oracle: `decimal`, and arithmetic."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvarn
from kvarn.system.values import LARGEST, Budget, WrongValue, count


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("512", 512), ("4K", 4096), ("4k", 4096), ("1M", 1 << 20), (7, 7), ("007", 7)],
)
def test_counts(text: str | int, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize(
    "wrong", ["", "K", "-1", "+1", " 1", "1.5", "1e3", "٣", "1_0", "4G", str(LARGEST + 1), "2048M",
              "9" * 5000, True, 1.0, None, -1],
)  # fmt: skip
def test_what_is_no_count_is_refused(wrong: object) -> None:
    with pytest.raises(WrongValue, match=f"expected a whole number from 0 to {LARGEST}, found "):
        count(wrong)


@pytest.mark.parametrize(
    ("text", "budget", "written"),
    [
        ("1%", Budget(share=Fraction(1, 100)), "1%"),
        ("1e-1%", Budget(share=Fraction(1, 1000)), "0.1%"),
        ("0.10%", Budget(share=Fraction(1, 1000)), "0.1%"),
        ("1E+1%", Budget(share=Fraction(1, 10)), "10%"),
        ("100%", Budget(share=Fraction(1)), "100%"),
        ("4096", Budget(number=4096), "4096"),
        ("4K", Budget(number=4096), "4096"),
        (4096, Budget(number=4096), "4096"),
    ],
)
def test_budgets(text: str | int, budget: Budget, written: str) -> None:
    assert Budget.parse(text) == Budget.parse(budget) == budget
    assert str(budget) == written and Budget.parse(written) == budget


@pytest.mark.parametrize(
    "wrong", ["", "%", "0%", "0", "-1%", "101%", "1e3%", "nan%", "inf%", "1.5", "1_0%", "٣%",
              "lots", "1%%", "1 %", 0, -3, 0.5, None],
)  # fmt: skip
def test_what_is_no_budget_is_refused_by_each_method(wrong: object) -> None:
    expected = r"expected a share \(more than 0% to 100%\) or a count of tokens"
    with pytest.raises(WrongValue, match=expected):
        Budget.parse(wrong)  # type: ignore[arg-type]
    for method in (kvarn.TopK, kvarn.Hash, kvarn.Streaming, kvarn.NaCl):
        with pytest.raises(kvarn.KvarnError, match=f"budget is .*, {expected}"):
            method(wrong)  # type: ignore[arg-type]


@given(st.decimals("0.001", 100, places=3), st.integers(1, LARGEST))
def test_a_share_is_exact(percent: Decimal, stored: int) -> None:
    """Not as in floating point, where 1% of 700 tokens would be 8."""
    exact = math.ceil(Fraction(percent) * stored / 100)
    assert Budget.parse(f"{percent}%").tokens(stored) == exact
    assert Budget.parse("1%").tokens(700) == 7


def test_methods_have_numbers() -> None:
    assert kvarn.TopK("1e-1%") == kvarn.TopK(Budget(share=Fraction(1, 1000)))
    assert kvarn.Streaming("4K") == kvarn.Streaming(4096)
    assert kvarn.NaCl(800, proxies="10%").proxies == Budget(share=Fraction(1, 10))
