"""The checking wrappers of blocks of similar keys: building them, and the best in them."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import Range, check_choice
from ..sketch.api import Rotation, SketchScratch, check_query, check_rotation
from ..sketch.arguments import Wanted
from ..work import HISTOGRAM
from .arguments import Keys, Query, Scan, Scratch
from .layout import BLOCKS

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
_WORK_ROWS = SEGMENT + 5  # floats a thread: the keys, and what is computed of one block

_keys = Arguments(Keys)


@lazy_kernel
def _block_keys() -> DefinedKernel:
    from .build import block_keys_kernel

    return block_keys_kernel


@lazy_kernels
def _best_in_blocks(
    k_type: int, v_type: int, blocks: int, bits: int, together: int
) -> DefinedKernel:
    from .scan import make_blocks

    return make_blocks(k_type, v_type, blocks, bits, together)


def block_keys(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    items: I64,
    first: int,
    last: int,
) -> None:
    """Write the blocks of segments first .. last-1, which are full, into their column.

    items: base addresses of the segments of a column of `block_item_bytes`; see `layout`.
    """
    room = min(len(segments), len(items))
    if not 0 <= first <= last <= room:
        raise OpsError(f"blocks: segments {first} to {last - 1} lie outside the {room} stored")
    check_rotation("blocks", rotation, layout)
    threads = n_threads()
    works = aligned((threads, _WORK_ROWS * rotation.bits), np.float32)
    works[:] = 0  # what rows have beyond head_dim
    entries, spare = np.empty((2, threads, SEGMENT), np.uint64)
    keys = Keys(
        segments=segments,
        layout=stored_layout(layout),
        items=items,
        rotation=rotation.weights,
        works=works,
        order=np.empty((threads, SEGMENT), np.uint16),
        entries=entries,
        spare=spare,
        histogram=np.empty((threads, HISTOGRAM), np.int64),
    )
    _block_keys(_keys.fill(keys), n_kv_heads, rotation.bits, first, last)


class BlockScratch(SketchScratch):
    """SketchScratch with what the search in blocks needs."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k, layout)
        self.block_query, self.block_arguments = Arguments(Query), Arguments(Scratch)

    def ready(self, threads: int) -> None:
        """As SelectScratch's."""
        before = self.threads
        super().ready(threads)
        if threads > before:
            self.looked = np.zeros(self.n_kv_heads, np.int64)
            self.block_arguments.fill(self._block_arrays(threads))

    def _block_arrays(self, threads: int) -> Scratch:
        n, sketches = self.together, self.sketches
        queries = aligned((threads, n, self.bits), np.float32)
        queries[:] = 0
        scan = Scan(
            queries=queries,
            reach=np.empty((threads, n), np.float32),
            units=np.empty((threads, n), np.float32),
            centres=aligned((threads, 2, n, BLOCKS), np.float32),
            bounds=aligned((threads, 2, n, BLOCKS), np.float32),
            wanted=np.empty((threads, 2, n), np.uint64),
            sums=aligned((threads, 64), np.float32),
        )
        return Scratch(
            products=sketches.products,
            turned=sketches.turned,
            tables=sketches.tables,
            scan=scan,
            order=sketches.order,
            found=sketches.found,
            chosen=sketches.chosen,
            listed=np.empty((threads, self.n_ctx), np.uint32),
        )


def best_in_blocks(
    q: F32,
    segments: I64,
    items: I64,
    rotation: Rotation,
    among: Range,
    k: int,
    few: int,
    index: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
    scratch: BlockScratch,
) -> int:
    """Lists of tokens as `best_sketched`, by estimates that the bound of their block caps.

    items: addresses of the column's segments, those below among.stop // 1024 built; tokens of the
    open segment are candidates all. `few` is for each query head, k <= few; index has room for k.
    Gives how many blocks were looked at, over all query heads.
    """
    s = scratch
    few = min(few, max(k, among.last - among.first))
    check_choice("blocks", among, k, index, counts, s)
    check_query("blocks", q, s)
    if not k <= few <= s.k:
        raise OpsError(f"blocks: cannot choose {k} of {few} candidates, there is room for {s.k}")
    if among.stop > SEGMENT * len(segments) or among.stop // SEGMENT > len(items):
        raise OpsError(f"blocks: token {among.stop - 1} lies outside the columns")
    s.ready(n_threads())
    query = Query(
        q=q,
        segments=segments,
        items=items,
        rotation=rotation.weights,
        lists=index,
        counts=counts,
        looked=s.looked,
    )
    choose, wanted = _best_in_blocks(*s.layout.codes, s.bits, s.together), Wanted(k, few, seed)
    choose(s.block_query.fill(query), s.block_arguments.address, s.n_kv_heads, *among, *wanted)
    return int(s.looked.sum())
