"""The best of the nearest, for many rows of queries: each row's list is that of `single`."""

import numpy as np

from .....jit.cached import jit
from .....jit.launch.atomics import take
from .....jit.launch.define import Share, kernel
from .....jit.launch.views import of_thread
from ....attention.layout import SEGMENT
from ....attention.shape import shape_of
from ...choice import Range
from ...lists import clear, write_list
from ...masks import kind_of
from ...queries import pack_queries
from ...rerank.arguments import Wanted
from ...rerank.rows import rerank_row
from ...work import ROWS
from ..rows import row_marks, scan_block
from .arguments import ScoredRows, ScoredRowScratch


def make_reranked_rows(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @jit
    def choose_row(given, row, j, first, queries, among, wanted, mine):
        """Write the list of one row and KV head, whose first pass in its block is `first`."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        scan, block, signed, last = mine.scan, mine.rerank, given.signed, among.last
        rows, seed = block.products.rows, np.uint32(wanted.seed)
        offset = j * SEGMENT * (bits // 8)
        pack_queries(shape, given.q[row : row + 1], j, len(rows), rows)
        clear(block.chosen, last)
        for g in range(0, len(rows), together):
            marks = row_marks(
                kind, signed.items, offset, among, queries[g : g + together],
                wanted.n_candidates, seed, first + g // together, scan,
            )  # fmt: skip
            stop = write_list(marks, 0, last, last, block.listed)
            listed, own = block.listed[:stop], block.guesses[g : g + together]
            rerank_row(shape, given.segments, j, listed, rows[g : g + together], own, wanted, block)
        signed.counts[row, j] = write_list(block.chosen, 0, last, last, signed.lists[row, j])

    @kernel
    def reranked_rows_kernel(
        share: Share, given: ScoredRows, scratch: ScoredRowScratch, among: Range, wanted: Wanted
    ):
        """Each row's and KV head's list, without tokens before the first. For every 32 rows reads
        bits / 8 bytes a token and KV head, and for each row the K rows of its candidates."""
        kind, seed, mine = (
            kind_of(bits, together),
            np.uint32(wanted.seed),
            of_thread(scratch, share.part),
        )
        n_rows, n_kv_heads, group = given.signed.queries.shape
        n_blocks = (n_rows + ROWS - 1) // ROWS
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            j, row = item // n_blocks, item % n_blocks * ROWS
            queries = scan_block(
                kind, given.signed, j, row, among, together, wanted.n_candidates, seed,
                mine.scan,
            )  # fmt: skip
            mine.rerank.guesses[:] = 0.0
            for r in range(len(queries)):
                first = r * (group // together)
                choose_row(given, row + r, j, first, queries[r], among, wanted, mine)
            item = take(share.ticket)

    return reranked_rows_kernel
