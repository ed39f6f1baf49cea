"""The best of the nearest, for one token's query heads."""

import numpy as np

from .....jit.cached import jit
from .....jit.launch.atomics import take
from .....jit.launch.define import Share, kernel
from .....jit.launch.views import of_thread
from ....attention.layout import SEGMENT
from ....attention.shape import shape_of
from ...choice import Range
from ...lists import clear, mark_taken, write_list
from ...masks import bits_of, kind_of
from ...queries import pack_queries
from ...rerank.arguments import Wanted
from ...rerank.single import rerank
from ...sampling import STRIDE, put_order
from ..arguments import Tally
from ..hamming import select_head
from .arguments import ScoredQuery, ScoredScratch


@jit
def _choose(shape, kind, query, j, among, wanted, together, mine):
    """Write the list of KV head j."""
    scan, search, signed, last = mine.scan, mine.search, query.signed, among.last
    rows, chosen, tallies = search.products.rows, search.chosen, scan.tally
    tally = Tally(tallies[0, :together], tallies[1, :together])
    stride = STRIDE if last - among.first > 4 * STRIDE * SEGMENT else 1
    n, due = put_order(among.first, last, stride, scan.order)
    pack_queries(shape, query.q, j, len(rows), rows)
    clear(chosen, among.stop)
    for g in range(0, len(rows), together):
        clear(scan.marks, among.stop)
        select_head(
            kind, signed.items, j * SEGMENT * (bits_of(kind) // 8), among, signed.taken[j], n, due,
            signed.queries[j, g : g + together], wanted.n_candidates, np.uint32(wanted.seed), tally,
            scan,
        )  # fmt: skip
        stop = write_list(scan.marks, 0, last, last, search.listed)
        rerank(
            shape, query.segments, j, search.listed[:stop], rows[g : g + together], wanted, search
        )
        for w in range((last + 63) // 64):
            chosen[w] |= search.found.marks[w]
    mark_taken(signed.taken[j], among.stop, chosen)
    return write_list(chosen, among.first, last, among.stop, signed.lists[j])


def make_reranked(k_type, v_type, blocks, bits, together):
    """The kernel for KV types, rows of 32 * blocks, `bits` bits, `together` queries at a time."""

    @kernel
    def reranked_kernel(
        share: Share, query: ScoredQuery, scratch: ScoredScratch, among: Range, wanted: Wanted
    ):
        """Lists as the Hamming scan's. For every `together` queries reads bits / 8 bytes a token
        and KV head, and the K rows of the candidates."""
        shape, kind = shape_of(k_type, v_type, blocks, together), kind_of(bits, together)
        mine = of_thread(scratch, share.part)
        j = take(share.ticket)
        while j < query.signed.queries.shape[0]:
            query.signed.counts[j] = _choose(shape, kind, query, j, among, wanted, together, mine)
            j = take(share.ticket)

    return reranked_kernel
