"""Budgets that rise from layer to layer."""

import pytest

from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from lab.methods import Rising

from ...runtime.reading import read


def test_shares_rise_and_are_one_in_the_mean() -> None:
    shares = Rising().shares(16)
    assert shares == sorted(shares) and sum(shares) == pytest.approx(16)
    assert Rising().shares(1) == [1]


def test_layers_read_their_shares(model: Model) -> None:
    """Of two layers that choose, 2/3 and 4/3 of the tokens that a query head may choose."""
    common = {"index": "flat", "sink": 4, "window": 16, "budget": 120, "budget_unit": "query-head"}
    most = [4 + 16 + 2 * n for n in (80, 160)]
    layers = read(model, Rising(**common), 1100, 3)[0].stats.as_dict()["layers"]
    for layer, n in zip(layers, most, strict=True):
        assert layer["attended_tokens"] <= 3 * 2 * n
    equal = read(model, TopK(**common), 1100, 3)[0].stats.as_dict()["layers"]
    assert layers[0]["attended_tokens"] < equal[0]["attended_tokens"]
    assert layers[1]["attended_tokens"] > equal[1]["attended_tokens"]
