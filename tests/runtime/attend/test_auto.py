"""`auto`: full attention's bits where all is read, `topk`'s beyond, and a line that says which."""

from dataclasses import replace

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
    got = reading.read(tiny, Auto(**common, full_up_to=1050), N, 4)
    topk = TopK(**common, budget_unit="query-head", tail="means")
    expected = reading.read(tiny, topk, N, 4)
    np.testing.assert_array_equal(got[1], expected[1])


def test_what_evicts_has_no_means(tiny: Model) -> None:
    auto = Auto(budget=40, sink=4, window=16, full_up_to=60)
    assert not auto.needs_all_tokens and not auto.host_only
    assert Auto(index="flat", tail="none").host_only == TopK(index="flat").host_only
    keep = kvarn.Streaming(budget=100)
    with tiny.context(1200, auto, keep=keep) as context:
        context.prefill([1 + i % 50 for i in range(N)])
        got = context.decode(1).copy()
        assert context.notices[0].endswith("then topk with a budget of 40 per query head")
    with tiny.context(1200, replace(auto, tail="none"), keep=keep) as context:
        context.prefill([1 + i % 50 for i in range(N)])
        np.testing.assert_array_equal(context.decode(1), got)


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
            "method auto: full attention up to 1,050 tokens, then topk with a budget of 1.5% per "
            "query head, and means for the rest"
        )


def test_full_stays_the_default() -> None:
    with pytest.raises(AttendError, match="full_up_to is -1, expected a whole number from 0"):
        Auto(full_up_to=-1)
    assert kvarn.Hash().budget == Budget.parse("2%")
    assert kvarn.TopK().budget == Budget.parse("1%")
    assert kvarn.Auto().budget == Budget.parse("1.5%")
    from kvarn.runtime.axes import ATTEND_AXIS

    assert ATTEND_AXIS.default == "full"
