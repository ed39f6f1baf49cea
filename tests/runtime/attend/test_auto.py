"""`auto`: full attention's bits where all is read, `topk`'s beyond, and a line that says which."""

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import AttendError, Auto, Full, TopK
from kvarn.runtime.model import Model
from kvarn.system.values import Budget

from .. import reading

N = 1100
"""Tokens of a prompt: sketches begin with the first full segment."""


def test_up_to_its_length_it_is_full(tiny: Model) -> None:
    found = reading.read(tiny, Auto(), 60, 3)
    expected = reading.read(tiny, Full(), 60, 3)
    np.testing.assert_array_equal(found[1], expected[1])


def test_beyond_its_length_it_is_topk(tiny: Model) -> None:
    common = {"budget": 40, "sink": 4, "window": 16}
    found = reading.read(tiny, Auto(**common, full_up_to=1050), N, 4)
    expected = reading.read(tiny, TopK(**common), N, 4)
    np.testing.assert_array_equal(found[1], expected[1])


def test_it_chooses_only_beyond_its_length(tiny: Model) -> None:
    with tiny.context(1200, Auto(budget=40, sink=4, window=16, full_up_to=1050)) as context:
        context.prefill([1 + i % 50 for i in range(1048)])
        steps = []
        for _ in range(4):
            context.decode(1)
            steps.append(sum(layer.steps for layer in context.stats.layers))
    assert steps[0] == steps[1] == 0 < steps[2] < steps[3]


def test_a_line_says_what_it_does(tiny: Model) -> None:
    with tiny.context(1050, Auto(full_up_to=1050)) as context:
        assert context.notices == (
            "method auto: full attention, for the context has 1,050 tokens at most",
        )
    with tiny.context(1051, Auto(full_up_to=1050)) as context:
        assert context.notices[0] == (
            "method auto: full attention up to 1,050 tokens, then topk with a budget of 2%"
        )


def test_full_stays_the_default() -> None:
    with pytest.raises(AttendError, match="full-up-to is -1, expected 0 or more"):
        Auto(full_up_to=-1)
    assert kvarn.Auto().budget == kvarn.Hash().budget == Budget.parse("2%")
    assert kvarn.TopK().budget == Budget.parse("1%")
    from kvarn.runtime.axes import ATTEND_AXIS

    assert ATTEND_AXIS.default == "full"
