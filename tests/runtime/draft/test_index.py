"""The index of n-grams against a search through all tokens."""

import numpy as np
import pytest

from kvarn.runtime.draft.index import NgramIndex

SIZES = (2, 4, 8)


def random_tokens(n: int, n_vocab: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


def searched(tokens: list[int]) -> tuple[int, int]:
    """(place, length) as `NgramIndex.find` promises it, by looking everywhere."""
    end = len(tokens)
    for size in reversed(SIZES):
        for place in range(end - 1, size - 1, -1):
            if tokens[place - size : place] == tokens[end - size :]:
                length = size
                while length < min(place, 16) and (
                    tokens[place - length - 1] == tokens[end - length - 1]
                ):
                    length += 1
                return place, length
    return 0, 0


@pytest.mark.parametrize("n_vocab", [1, 2, 5, 30])
def test_finds_the_latest_place_of_the_longest_ngram(n_vocab: int) -> None:
    tokens = random_tokens(120, n_vocab, seed=n_vocab)
    index = NgramIndex(SIZES)
    for n in range(1, len(tokens) + 1):
        assert index.find(tokens[:n]) == searched(tokens[:n])


@pytest.mark.parametrize("steps", [(1,) * 60, (1, 59), (33, 27), (60,)])
def test_how_tokens_arrive_changes_nothing(steps: tuple[int, ...]) -> None:
    tokens = random_tokens(60, 3, seed=1)
    index, n = NgramIndex(SIZES), 0
    for step in steps:
        n += step
        match = index.find(tokens[:n])
        assert match == searched(tokens[:n])


def test_a_long_prompt_is_read_as_its_tokens_one_by_one() -> None:
    # Longer than a block of NumPy's and than several sizes of the tables, ids beyond 16 bits.
    tokens = [100_000 + i for i in random_tokens(70_000, 300, seed=2)]
    at_once, one_by_one = NgramIndex(SIZES), NgramIndex(SIZES)
    for n in range(1, 3001):
        match = one_by_one.find(tokens[:n])
    assert at_once.find(tokens[:3000]) == match
    for table, other in zip(at_once._tables, one_by_one._tables):
        np.testing.assert_array_equal(table, other)
    at_once.find(tokens)
    assert at_once.find([*tokens, *tokens[500:520]]) == (520, 16)


def test_memory_grows_with_the_context_and_is_bounded() -> None:
    index = NgramIndex(SIZES)
    for n in (1, 1024, 1025, 5000):
        index.find([0] * n)
        assert index.n_bytes <= max(48 * n, 3 * 8192)
        assert index.n_bytes >= 24 * n


def test_the_same_tokens_again_do_not_find_themselves() -> None:
    index = NgramIndex((2,))
    assert index.find([1, 2, 3]) == index.find([1, 2, 3]) == (0, 0)
