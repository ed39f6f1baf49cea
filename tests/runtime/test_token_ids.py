"""Ids in an array, beside a list of the same numbers."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.context.reading.prompt import n_common
from kvarn.runtime.token_ids import TokenIds

IDS = st.lists(st.integers(0, (1 << 32) - 1), max_size=40)


@given(IDS, IDS, st.integers(-50, 50), st.integers(-50, 50))
def test_an_array_reads_like_a_list(ids: list[int], more: list[int], start: int, stop: int) -> None:
    tokens = TokenIds(ids)
    assert tokens == ids and ids == tokens and tokens == tuple(ids) and tokens == TokenIds(ids)
    assert (tokens == more) == (ids == more) and (tokens != more) == (ids != more)
    assert tokens[start:stop] == ids[start:stop] and type(tokens[start:stop]) is list
    assert tokens.first(abs(start)) == ids[: abs(start)]
    assert [*tokens] == ids and tokens + more == ids + more == [*ids, *more]
    assert more + tokens == more + ids and repr(tokens) == repr(ids)
    assert pickle.loads(pickle.dumps(tokens)) == tokens
    assert np.asarray(tokens).tolist() == ids and np.asarray(tokens).dtype == np.uint32
    tokens += more
    del tokens[: max(0, start)]
    assert tokens == (ids + more)[max(0, start) :]
    tokens[:] = TokenIds(more)
    assert tokens == more


@pytest.mark.parametrize("wrong", [-1, 1 << 32])
def test_what_is_no_id_is_refused(wrong: int) -> None:
    with pytest.raises(OverflowError):
        TokenIds([wrong])


@given(IDS, IDS)
def test_a_copy_is_of_its_own(ids: list[int], more: list[int]) -> None:
    tokens = TokenIds(ids)
    copies = [tokens.copy(), copy.copy(tokens), copy.deepcopy(tokens), copy.deepcopy([tokens])[0]]
    tokens.extend(more)
    tokens.append(7)
    assert all(type(one) is TokenIds and one == ids for one in copies)
    assert tokens == [*ids, *more, 7]


@pytest.mark.parametrize(
    "more", [[5, -1], [5, 1 << 32], (5, "x"), iter([5, None]), np.array([5, -1]), "56", [5, 0.5]]
)
def test_an_extension_that_fails_leaves_nothing(more: Any) -> None:
    tokens = TokenIds([1, 2])
    with pytest.raises((OverflowError, TypeError)):
        tokens.extend(more)
    with pytest.raises((OverflowError, TypeError)):
        tokens += iter([*more, -1])
    assert tokens == [1, 2]


@pytest.mark.parametrize(
    "more", [(3, 4), b"\3\4", range(3, 5), np.array([3, 4]), TokenIds([3, 4]), iter([3, 4])]
)
def test_whatever_has_ids_extends(more: Any) -> None:
    tokens = TokenIds([1, 2])
    tokens.extend(more)
    tokens.extend(tokens)
    assert tokens == [1, 2, 3, 4] * 2


@pytest.mark.parametrize("n", [0, 1, 65_535, 65_536, 65_537, 140_000])
def test_beginnings_that_are_alike_are_found_in_any_type(n: int) -> None:
    ids = [*range(150_000)]
    other = [*ids[:n], 7]
    for one in (ids, TokenIds(ids), tuple(ids)):
        for two in (other, TokenIds(other)):
            assert n_common(one, two) == n == n_common(two, one)
