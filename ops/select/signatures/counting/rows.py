"""What the rows of a block choose: a scan for all of them, then the marks of each pass."""

from .....jit.cached import jit
from .....jit.launch.views import address
from ....attention.layout import SEGMENT
from ...masks import bits_of
from ...work import ROWS
from .draws import draw
from .limits import find_limits, guess_limits, take_sample
from .marks import find_marks
from .queries import put_query

_GUESS = 6  # a distance, even as all where counting begins, for the first rows


@jit
def scratch_of(mine):
    """What these functions work on, of a thread's `RowScratch`."""
    return mine.by_counts


@jit
def scan_block(kind, given, j, row, among, together, k, seed, block):
    """Mark the sure tokens of the rows of a block, from `row` on; returns their queries."""
    n_rows, _, group = given.queries.shape
    first, last, offset = among.first, among.last, j * SEGMENT * (bits_of(kind) // 8)
    rows = block.signatures[: min(ROWS, n_rows - row)]
    n_queries = len(rows) * group
    for r in range(len(rows)):
        for g in range(group):
            rows[r, g] = given.queries[row + r, j, g]
            own = r * group + g
            put_query(kind, address(block.queries[own]), rows[r, g])
            block.limits[own] = _GUESS
    sampled = take_sample(kind, given.items, offset, first, last, block)
    if sampled:
        wanted = max(k * sampled * SEGMENT // (last - first), 1)
        guess_limits(kind, sampled, wanted, n_queries, block)
    find_limits(kind, given.items, offset, among, k, n_queries, block)
    find_marks(kind, given.items, offset, among, n_queries, together, k, seed, block)
    return rows


@jit
def mark_pass(kind, items, offset, among, queries, k, seed, p, block):
    """Mark what pass p of a block, some queries uint64 of one row, chooses."""
    near = block.near[p]
    for w in range((among.last + 63) // 64):
        block.marks[w] |= near[w]
    for own in range(p * len(queries), (p + 1) * len(queries)):
        draw(kind, own, k, seed, block)
