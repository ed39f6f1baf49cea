"""The k signatures nearest to each query of many rows: one reading of the signatures for a block.

Segments are the outer loop and rows the inner one, so that a segment's signatures stay in L1 while
all rows of a block compare theirs. Each choice is that of `hamming`, found in one of two ways:

    counting   compares each signature twice, whatever is chosen
    row_scans  compares it once, and looks at each candidate: where few of many are chosen
"""

import numpy as np

from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import of_thread
from ...attention.layout import SEGMENT
from ..choice import Range
from ..lists import write_list
from ..masks import kind_of
from ..work import ROWS
from . import counting, row_scans
from .arguments import RowQueries, RowScratch


def way_of(by_counting):
    """The functions scan_block, row_marks and scratch_of of one of the two ways."""
    way = counting if by_counting else row_scans
    return way.scan_block, way.row_marks, way.scratch_of


def make_rows(bits, together, by_counting):
    """The kernel for signatures of `bits` bits, `together` queries of a group at a time."""
    scan_block, row_marks, scratch_of = way_of(by_counting)

    @kernel
    def rows_kernel(
        share: Share, given: RowQueries, scratch: RowScratch, among: Range, k: int, seed: int
    ):
        """Each row's and KV head's list: the k of first .. last-1 nearest to each of its queries.

        Reads bits / 8 bytes a token and KV head for every 32 rows.
        """
        last, kind, hashed = among.last, kind_of(bits, together), np.uint32(seed)
        n_rows, n_kv_heads, group = given.queries.shape
        block, passes = scratch_of(of_thread(scratch, share.part)), group // together
        n_blocks = (n_rows + ROWS - 1) // ROWS
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            j, row = item // n_blocks, item % n_blocks * ROWS
            offset = j * SEGMENT * (bits // 8)
            queries = scan_block(kind, given, j, row, among, together, k, hashed, block)
            for r in range(len(queries)):
                marks = row_marks(
                    kind, given.items, offset, among, queries[r], k, hashed, r * passes, block
                )
                given.counts[row + r, j] = write_list(marks, 0, last, last, given.lists[row + r, j])
            item = take(share.ticket)

    return rows_kernel
