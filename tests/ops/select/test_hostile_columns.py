"""Columns that say anything: what is chosen are tokens of the range, each once, and no memory is
touched that is not the index's. (In a child process for whole packs: `commands/mutants`.)"""

from collections.abc import Callable

import numpy as np
import pytest

from kvarn.ops.attention.arguments import Dense
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.select import Range, Tables, block_means
from kvarn.ops.select.blocks.layout import offsets_of
from kvarn.ops.select.means.layout import TILES, means_layout
from kvarn.ops.select.tables.planes import RUN

from .test_blocks import Blocks
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


def test_orders_beyond_a_segment_choose_tokens_of_it(make_cache, queries, filled: Bytes) -> None:
    blocks = Blocks(make_cache(64, "q8_0", "q8_0", 2, N))
    blocks.build(0, 3)
    at = offsets_of(blocks.bits)
    blocks.memory[:3, :, at.order : at.means] = filled((3, 2, 2 * SEGMENT))
    for listed in blocks.choose(queries(1, 4, 64), AMONG, 32, 80):
        check(listed, AMONG)


def test_blocks_of_anything_choose_tokens(make_cache, queries, filled: Bytes) -> None:
    """Among them bounds that are NaN, which no token reaches."""
    blocks = Blocks(make_cache(64, "q8_0", "q8_0", 2, N))
    blocks.memory[:] = filled(blocks.memory.shape)
    whole = Range(4, 3 * SEGMENT, N)
    for among in (AMONG, whole):
        for listed in blocks.choose(queries(1, 4, 64), among, 32, 80):
            check(listed, among)


def test_means_of_orders_beyond_a_segment_stay_in_it(make_cache, filled: Bytes) -> None:
    means = Means(make_cache(64, "f16", "f16", 2, 2 * SEGMENT))
    at = offsets_of(means.rotation.bits)
    means.blocks[:, :, at.order : at.means] = filled((2, 2, 2 * SEGMENT))
    items, cache = means.items, means.cache
    blocks = means.blocks.ctypes.data + means.blocks[0].nbytes * np.arange(2)
    before = means.means[1].copy()
    block_means(cache.segments, cache.layout, 2, blocks, items, 0, 1)
    np.testing.assert_array_equal(means.means[1], before)  # the next segment, behind it in memory
    assert (means.stored(0)[2] < 32).all()


@pytest.mark.parametrize("rows", [False, True])
def test_tokens_in_blocks_that_are_none(make_cache, queries, filled: Bytes, rows: bool) -> None:
    """Which block a token stands in is counted, beside memory that nothing may touch."""
    cache, at = make_cache(64, "q8_0", "q8_0", 2, 4 * SEGMENT), TILES * means_layout(64).tile_bytes
    blocks = slice(at, at + SEGMENT)
    if rows:
        means = RowMeans(cache, Dense(128, 3 * SEGMENT - 128, 4 * SEGMENT - 27), 27, 300)
        means.means[:, :, blocks] = filled((4, 2, SEGMENT))
        means.attend(queries(27, 4, 64), scale=0.1)
        return
    means, counts = Means(cache), np.array([4 * SEGMENT - 5, 900])
    index = np.zeros((2, 4 * SEGMENT), np.uint32)
    for j, n in enumerate(counts):
        index[j, :n] = np.arange(n)
    means.means[:, :, blocks] = filled((4, 2, SEGMENT))
    means.attend(queries(1, 4, 64), index, counts)


def test_groups_that_end_anywhere_draw_tokens(make_cache, queries, filled: Bytes) -> None:
    cache = make_cache(64, "f16", "f16", 2, RUN + 30)
    drawn, among = Drawn(cache, Tables(8, 20), 4), Range(4, RUN, RUN + 30)
    drawn.add(0, RUN + 30)
    drawn.column[:16] = filled(drawn.column[:16].shape)
    drawn.draw(queries(1, 4, 64), among)
    for j in range(2):
        check(drawn.lists[j, : drawn.counts[j]], among)
        assert not np.isnan(drawn.log_weights[:, : drawn.counts.min()]).any()
