"""`covered`: each query head reads the fewest tokens that hold a share of its softmax."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.runtime.attend import AttendError, Full, TopK
from kvarn.runtime.model import Model
from lab.methods import Covered

from ...runtime.reading import read

COMMON = {"budget": 40, "sink": 4, "window": 16, "probe": 1}
METHODS = [
    Covered(share="30%", index="flat", **COMMON),
    Covered(share="30%", index="sketch", **COMMON),
]


def name_of(method: TopK) -> str:
    return method.index


def whole(method: Covered) -> TopK:
    """The method without the share."""
    return TopK(**{**COMMON, "budget": method.budget}, index=method.index)


def layers_of(model: Model, method: TopK) -> list[dict]:
    return read(model, method, 2000, 3)[0].stats.as_dict()["layers"]


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_it_reads_the_fewest_tokens_that_hold_the_share(tiny: Model, method: TopK) -> None:
    long = replace(method, budget=1900)
    for most, fewer in zip(layers_of(tiny, whole(long)), layers_of(tiny, long)):
        assert fewer["attended_tokens"] < 0.9 * most["attended_tokens"]
        # Each head has the share at least, where the whole softmax is known.
        assert fewer["covered_mass"] > (0.3 if method.index == "flat" else 0.28)
        assert fewer["covered_mass"] < most["covered_mass"]


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_it_reads_no_more_than_the_budget(tiny: Model, method: TopK) -> None:
    _, want = read(tiny, whole(method), 2000, 3)
    _, got = read(tiny, replace(method, share="100%"), 2000, 3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_budget_of_the_whole_context_gives_the_bits_of_full(tiny: Model, method) -> None:
    _, want = read(tiny, Full(), 2000, 3)
    _, got = read(tiny, replace(method, budget="100%"), 2000, 3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("words", ["95", "0%", "101%", "x%", "%", "nan%"])
def test_impossible_shares_are_refused_in_words(words: str) -> None:
    with pytest.raises(AttendError, match=f"share is '{words}', expected a share of the softmax"):
        Covered(share=words)


def test_what_goes_with_no_share_is_refused_in_words() -> None:
    with pytest.raises(AttendError, match="tail is means, expected none"):
        Covered(tail="means")
    assert Covered().needs_all_tokens and Covered().host_only == "attend covered"
