"""Choices by signatures whose candidates are scored exactly: some times k nearest, then the best k.

candidates  each query head's `n_candidates` nearest signatures, as `nearest` chooses them
rerank      of the candidates of all heads that share a pass (`together`), each head takes its
            k largest exact q . k
list        the union of what all query heads of the KV head took
"""

from ....jit.cached import jit
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import of_thread
from ...attention.layout import SEGMENT
from ...attention.shape import shape_of
from ..choice import Range, Wanted
from ..lists import clear, mark_taken, write_list
from ..masks import kind_of
from ..queries import pack_queries
from ..rerank import mark_largest
from ..work import ROWS
from .arguments import Head, ScoredQuery, ScoredRows, ScoredRowScratch, ScoredScratch
from .hamming import mark_nearest, put_segments, tally_of
from .rows import head_of, row_marks, scan_block


def make_reranked(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @jit
    def choose(query, j, among, wanted, scratch):
        """Write the list of KV head j."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        scan, block, signed, last = scratch.scan, scratch.rerank, query.signed, among.last
        rows, taken, lists = block.rows, signed.taken[j], signed.lists
        offset, k = j * SEGMENT * (bits // 8), wanted.n_candidates
        head = Head(signed.items, offset, among, taken, k, wanted.seed)
        tally, (n, due) = tally_of(scan.tally, together), put_segments(among, scan.order)
        pack_queries(shape, query.q, j, len(rows), rows)
        block.guesses[:] = 0.0
        clear(block.chosen, among.stop)
        for g in range(0, len(rows), together):
            clear(scan.marks, among.stop)
            queries = signed.signatures[j, g : g + together]
            mark_nearest(kind, head, n, due, queries, tally, scan)
            n_listed = write_list(scan.marks, 0, last, last, block.listed)
            mark_largest(shape, query.segments, j, block.listed[:n_listed], g, wanted, block)
        mark_taken(taken, among.stop, block.chosen)
        tokens = lists.tokens[j]
        lists.counts[j] = write_list(block.chosen, among.first, last, among.stop, tokens)

    @kernel
    def reranked_kernel(
        share: Share, query: ScoredQuery, memory: ScoredScratch, among: Range, wanted: Wanted
    ):
        """Lists as the Hamming scan's. For every `together` queries reads bits / 8 bytes a token
        and KV head, and the K rows of the candidates."""
        scratch = of_thread(memory, share.part)
        j = take(share.ticket)
        while j < len(query.signed.lists.counts):
            choose(query, j, among, wanted, scratch)
            j = take(share.ticket)

    return reranked_kernel


def make_reranked_rows(k_type, v_type, blocks, bits, together):
    """The same for many rows: each row's list is that of the row alone."""

    @jit
    def choose_row(scored, row, head, j, first, queries, wanted, scratch):
        """Write the list of one row and KV head, whose first pass in its block is `first`."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        block, lists, last = scratch.rerank, scored.signed.lists, head.among.last
        pack_queries(shape, scored.q[row : row + 1], j, len(block.rows), block.rows)
        clear(block.chosen, last)
        for g in range(0, len(block.rows), together):
            of_pass, p = queries[g : g + together], first + g // together
            marks = row_marks(kind, head, of_pass, p, scratch.scan)
            n = write_list(marks, 0, last, last, block.listed)
            mark_largest(shape, scored.segments, j, block.listed[:n], g, wanted, block)
        lists.counts[row, j] = write_list(block.chosen, 0, last, last, lists.tokens[row, j])

    @kernel
    def reranked_rows_kernel(
        share: Share, scored: ScoredRows, memory: ScoredRowScratch, among: Range, wanted: Wanted
    ):
        """Each row's and KV head's list, without tokens before the first. For every 32 rows reads
        bits / 8 bytes a token and KV head, and for each row the K rows of its candidates."""
        kind, scratch, rows = kind_of(bits, together), of_thread(memory, share.part), scored.signed
        n_rows, n_kv_heads, group = rows.signatures.shape
        n_blocks = (n_rows + ROWS - 1) // ROWS
        item = take(share.ticket)
        while item < n_blocks * n_kv_heads:
            j, row = item // n_blocks, item % n_blocks * ROWS
            k, seed = wanted.n_candidates, wanted.seed
            head = head_of(kind, rows, j, among, k, seed, scratch.scan)
            queries = scan_block(kind, head, rows, j, row, scratch.scan)
            scratch.rerank.guesses[:] = 0.0
            for r in range(len(queries)):
                first = r * (group // together)
                choose_row(scored, row + r, head, j, first, queries[r], wanted, scratch)
            item = take(share.ticket)

    return reranked_rows_kernel
