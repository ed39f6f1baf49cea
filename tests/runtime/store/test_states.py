"""States of recurrent layers: going back to copies, how close those stand, how many there are."""

from __future__ import annotations

import numpy as np
import pytest

from kvarn.ops.cpu import CPU
from kvarn.runtime.store.states import SPACING, States

SHAPES = (((2, 3), (4,)), ((5,),))


def _read(states: States, start: int, n: int, *, prompt: bool = True) -> None:
    """As a pass: a state tells how many tokens it is of."""
    states.begin(start, n, prompt=prompt)
    for layer in states.layers:
        for array in layer:
            array[:] = start + n


def _values(states: States) -> set[float]:
    return {float(x) for layer in states.layers for array in layer for x in array.ravel()}


def test_a_state_is_that_of_the_tokens_it_says() -> None:
    states, rng, n = States(CPU, SHAPES), np.random.default_rng(1), 0
    for _ in range(400):
        if rng.random() < 0.3:
            n = states.go_back(int(rng.integers(n + 1)))
        else:
            size = int(rng.integers(1, 513))
            _read(states, n, size, prompt=bool(rng.random() < 0.7))
            n += size
        assert _values(states) == {n}
    _read(states, 0, 7)
    assert _values(states) == {7} and states.positions == []


@pytest.mark.parametrize("passes", [512, 100, 1])
def test_no_more_is_read_again_than_was_dropped(passes: int) -> None:
    states, n_tokens = States(CPU, SHAPES), 20_000 if passes == 1 else 131_072
    for start in range(0, n_tokens, passes):
        states.begin(start, passes, prompt=passes > 1)
    end = start + passes
    places = np.array([0, *states.positions])
    to = np.arange(end)
    before = places[np.searchsorted(places, to, "right") - 1]
    assert (to - before <= np.maximum(SPACING, end - to)).all()
    assert len(places) < 20


def test_copies_take_no_more_than_they_may() -> None:
    states = States(CPU, SHAPES, most_bytes=4 * 15 * 3)
    assert states.n_bytes == 4 * 15
    for start in range(0, 50_000, 500):
        if start == 3000:
            states.pin(start)
        states.begin(start, 500, prompt=True)
    *others, last = states.positions
    assert len(others) == 2 and 3000 in others and last >= 49_000
    assert states.go_back(5000) == 3000 and states.positions == [3000]


def test_the_end_of_a_prompt_can_be_gone_back_to() -> None:
    states = States(CPU, SHAPES)
    _read(states, 0, 100)
    for start in range(100, 140):
        _read(states, start, 1, prompt=False)
    assert states.go_back(100) == 100 and _values(states) == {100}
    assert states.go_back(99) == 0 and _values(states) == {0}
