"""Limits and what reaches them, where scores are not finite: as NumPy counts them."""

from typing import NamedTuple

import numpy as np
import pytest

from kvarn.jit.launch import Arguments
from kvarn.jit.launch.arguments import F32_1D, I64_1D, U32_1D, U64_1D
from kvarn.jit.launch.define import Share, kernel
from kvarn.jit.launch.views import address
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.select.narrow import limit_between, take_at_least


class Scored(NamedTuple):
    scores: F32_1D
    listed: U32_1D
    entries: U64_1D
    taken: I64_1D


@kernel
def _take(share: Share, scored: Scored, n: int, k: int):
    """Entries of at least k of n scores."""
    scores, line = address(scored.scores), 4 * SEGMENT
    limit = limit_between(scores, line, n, k, k + 4, 0.0)
    scored.taken[0] = take_at_least(
        scores, line, n, limit, address(scored.listed), address(scored.entries)
    )


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1024, 1030])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf, 1.0])
def test_only_scores_of_tokens_are_taken(n: int, value: float) -> None:
    """A line is filled up to 16 scores by -inf, behind the last token of the list."""
    filled = -(-n // 16) * 16
    scored = Scored(
        np.full(filled, -np.inf, np.float32),
        np.full(filled, 999_999, np.uint32),
        np.zeros(filled, np.uint64),
        np.zeros(1, np.int64),
    )
    scored.scores[:n] = value
    scored.listed[:n] = np.arange(n)
    arguments = Arguments(Scored)
    _take(arguments.fill(scored), n, min(n, 8))
    n_taken = scored.taken[0]
    assert n_taken == (0 if np.isnan(value) else n)
    assert sorted(scored.entries[:n_taken] & 0xFFFFFFFF) == [*range(n_taken)]
