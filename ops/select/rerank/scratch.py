"""Memory for exact scores of candidates."""

import numpy as np

from ....jit.arena import aligned
from ...attention.layout import SEGMENT, TileLayout
from ...attention.work import WORK_BYTES, gathered_work_bytes
from ..work import HISTOGRAM
from .arguments import Products, RowRerank


def products_scratch(threads: int, group: int, layout: TileLayout) -> Products:
    """For products of the `group` query heads of a KV head."""
    return Products(
        rows=aligned((threads, group, layout.padded), np.float32),
        gathered_works=aligned((threads, gathered_work_bytes(layout.tile_bytes)), np.uint8),
        works=aligned((threads, WORK_BYTES), np.uint8),
    )


def row_rerank_scratch(
    threads: int, group: int, together: int, n_ctx: int, n_candidates: int, layout: TileLayout
) -> RowRerank:
    """For rows of which each query head has up to so many candidates among up to n_ctx tokens."""
    listed = min(together * n_candidates, n_ctx)
    return RowRerank(
        products=products_scratch(threads, group, layout),
        scores=aligned((threads, -(-listed // SEGMENT), together, SEGMENT), np.float32),
        guesses=np.empty((threads, group), np.float32),
        listed=np.empty((threads, listed + 4), np.uint32),
        taken=np.empty((threads, listed), np.uint64),
        spare=np.empty((threads, 2, listed + 1), np.uint64),
        histogram=np.zeros((threads, HISTOGRAM), np.int64),
        # 64 words, of 64 tokens each, are read at a time.
        chosen=np.zeros((threads, -(-n_ctx // 4096) * 64), np.uint64),
    )
