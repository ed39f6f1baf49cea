"""States of recurrent layers: checkpoints, what a cut reads again, and how many bytes they take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvarn.runtime.store.states import NEAR, SPACING, States, positions_to_keep

SHAPES = [((3, 5), (2, 4, 7)), ((3, 5),)]


def read(states: States, start: int, stop: int, step: int = SPACING) -> None:
    """Read tokens in passes that end at multiples of `step`: token t adds t % 7 to all numbers."""
    while start < stop:
        end = min(stop, (start // step + 1) * step)
        states.begin(start, end - start)
        for layer in range(len(SHAPES)):
            for array in states.of(layer):
                np.add(array, sum(token % 7 for token in range(start, end)), out=array)
        states.end(end)
        start = end


def of(n_tokens: int) -> np.ndarray:
    states = States(SHAPES)
    read(states, 0, n_tokens)
    return states.memory.copy()


def test_arrays_have_their_shapes_and_are_zeros() -> None:
    states = States(SHAPES)
    assert [[a.shape for a in states.of(i)] for i in range(2)] == [list(s) for s in SHAPES]
    assert all(a.ctypes.data % 64 == 0 and not a.any() for i in range(2) for a in states.of(i))
    assert states.of(1)[0] is states.of(1)[0]


@given(st.integers(1, 40 * SPACING), st.integers(0, 40 * SPACING))
@example(10 * SPACING, 2 * SPACING + 1)  # needs the third multiple of a spacing
def test_a_cut_reads_few_tokens_again(n_tokens: int, n_cut: int) -> None:
    n_cut = min(n_cut, n_tokens)
    positions = set()
    for start in range(SPACING, n_tokens + 1, SPACING):
        positions = set(positions_to_keep({*positions, start}, (), start, 1 << 30))
    to = n_tokens - n_cut
    assert to - max((p for p in positions if p <= to), default=0) <= max(SPACING, n_cut)
    assert len(positions) <= NEAR * max(1, n_tokens // SPACING).bit_length()


def test_going_back_restores_the_states_of_a_checkpoint() -> None:
    states = States(SHAPES)
    read(states, 0, 7 * SPACING + 100)
    for to in (7 * SPACING + 100, 7 * SPACING + 3, 6 * SPACING, 2 * SPACING + 1):
        position = states.go_back(to)
        assert position <= to and states.reaches(position)
        states.cut(to)
        read(states, position, to)
        np.testing.assert_array_equal(states.memory, of(to))


def test_a_pass_that_was_stopped_or_read_too_far_is_undone() -> None:
    states = States(SHAPES)
    read(states, 0, 700)
    states.begin(700, 5)
    states.memory += 1  # and is stopped
    assert not states.reaches(700) and states.go_back(700) == 700
    np.testing.assert_array_equal(states.memory, of(700))
    read(states, 700, 705, step=1000)
    assert states.go_back(703) == 700


def test_a_pinned_position_stays_until_it_is_cut() -> None:
    states = States(SHAPES)
    read(states, 0, 300)
    states.pin(300)
    states.pin(299)  # not where the arrays are
    read(states, 300, 9000)
    assert states.newest(510) == 300 and 299 not in states.checkpoints
    states.cut(299)
    assert states.newest(510) == 0


def test_bytes_are_bounded_and_the_newest_stays() -> None:
    one = States(SHAPES).memory.nbytes
    for most in (1, 3, 6):
        states = States(SHAPES, limit=most * one + 5)
        read(states, 0, 100 * SPACING + 7)
        assert len(states.checkpoints) == most and max(states.checkpoints) == 100 * SPACING
        assert states.n_bytes == (2 + most) * one
    tight = States(SHAPES, limit=0)
    read(tight, 0, 5 * SPACING + 1)
    assert list(tight.checkpoints) == [5 * SPACING]


def test_pins_outlast_others_where_there_is_no_room() -> None:
    assert positions_to_keep([512, 600, 1024, 1536, 2048], [600], 2048, 2) == [600, 2048]
    assert positions_to_keep([512, 600, 1024, 1536, 2048], [], 2048, 3)[-1] == 2048


@pytest.mark.parametrize("n", [0, 1])
def test_the_beginning_needs_no_checkpoint(n: int) -> None:
    states = States(SHAPES)
    read(states, 0, 600)
    states.cut(n)
    assert states.go_back(n) == 0 and not states.memory.any()
