"""Columns that say anything: what is chosen are tokens of the range, each once, and no memory is
touched that is not the index's. (In a child process for whole packs: `commands/mutants`.)"""

from collections.abc import Callable

import numpy as np
import pytest

from kvarn.ops.attention.arguments import Dense
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.select import Range, Tables
from kvarn.ops.select.means.layout import TILES, means_layout
from kvarn.ops.select.tables.planes import RUN

from .test_means import Means
from .test_row_means import RowMeans
from .test_tables import Drawn

N = 3 * SEGMENT + 40
AMONG = Range(4, N - 20, N)
Bytes = Callable[[tuple[int, ...]], np.ndarray]


def _noise(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, shape, np.uint8)


FILLINGS = [lambda shape, x=x: np.full(shape, x, np.uint8) for x in (0, 4, 31, 32, 128, 255)]


@pytest.fixture(params=[*FILLINGS, _noise], ids=["0", "4", "31", "32", "128", "255", "noise"])
def filled(request) -> Bytes:
    return request.param


def check(listed: np.ndarray, among: Range) -> None:
    """A list ascends, has all that is always read, and what it may choose from."""
    assert (np.diff(listed.astype(np.int64)) > 0).all()
    assert listed[-1] < among.stop
    fixed = [*range(among.first), *range(among.last, among.stop)]
    assert np.isin(fixed, listed).all()


@pytest.mark.parametrize("rows", [False, True])
def test_tokens_in_blocks_that_are_none(make_cache, queries, filled: Bytes, rows: bool) -> None:
    """Which block a token stands in is counted, beside memory that nothing may touch."""
    cache, at = make_cache(64, "q8_0", "q8_0", 2, 4 * SEGMENT), TILES * means_layout(64).tile_bytes
    blocks = slice(at, at + SEGMENT)
    if rows:
        means = RowMeans(cache, Dense(128, 3 * SEGMENT - 128, 4 * SEGMENT - 27), 27, 300)
        means.means[:, :, blocks] = filled((4, 2, SEGMENT))
        means.attend(queries(27, 8, 64), scale=0.1)
        return
    means, counts = Means(cache), np.array([4 * SEGMENT - 5, 900])
    index = np.zeros((2, 4 * SEGMENT), np.uint32)
    for j, n in enumerate(counts):
        index[j, :n] = np.arange(n)
    means.means[:, :, blocks] = filled((4, 2, SEGMENT))
    means.attend(queries(1, 8, 64), index, counts)


def test_groups_that_end_anywhere_draw_tokens(make_cache, queries, filled: Bytes) -> None:
    cache = make_cache(64, "f16", "f16", 2, RUN + 30)
    drawn, among = Drawn(cache, Tables(8, 20), 4), Range(4, RUN, RUN + 30)
    drawn.add(0, RUN + 30)
    drawn.column[:16] = filled(drawn.column[:16].shape)
    drawn.draw(queries(1, 4, 64), among)
    for j in range(2):
        check(drawn.lists[j, : drawn.counts[j]], among)
        assert not np.isnan(drawn.log_weights[:, : drawn.counts.min()]).any()
