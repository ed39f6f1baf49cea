"""What the rows of a block choose: a scan for all of them, then the marks of each pass."""

from .....jit.cached import jit
from .....jit.launch.views import address
from ....attention.layout import SEGMENT
from ...masks import bits_of, queries_of
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
def row_marks(kind, items, offset, among, queries, k, seed, p, block):
    """What `queries` uint64 choose, those of one row or of one pass of it, from pass p on: bits of
    uint64[]. It is the memory of pass p, so a pass is asked for once."""
    together = queries_of(kind)
    marks = block.near[p]
    for other in range(p + 1, p + len(queries) // together):
        near = block.near[other]
        for w in range((among.last + 63) // 64):
            marks[w] |= near[w]
    for own in range(p * together, p * together + len(queries)):
        draw(kind, own, k, seed, marks, block)
    return marks
