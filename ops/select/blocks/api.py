"""The checking wrappers of blocks of similar keys: building them, and choosing among them."""

import numpy as np

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.layout import SEGMENT, TileLayout, stored_layout
from ...errors import OpsError
from ..choice import F32, I64, Lists, Range, Wanted, check_columns, check_stored
from ..sketch.arguments import Rotation
from ..sketch.index import check_rotation
from ..sketch.search import SearchScratch, check_search
from ..work import HISTOGRAM
from .arguments import BlockedKeys, Keys, Query, Scan, Scratch
from .layout import BLOCKS

_WORK_ROWS = SEGMENT + 5  # floats a thread: the keys, and what is computed of one block

_keys = Arguments(Keys)


@lazy_kernel
def _block_keys() -> DefinedKernel:
    from .build import block_keys_kernel

    return block_keys_kernel


@lazy_kernels
def _in_blocks(k_type: int, v_type: int, blocks: int, bits: int, together: int) -> DefinedKernel:
    from .scan import make_blocks

    return make_blocks(k_type, v_type, blocks, bits, together)


def block_keys(
    rotation: Rotation,
    segments: I64,
    layout: TileLayout,
    n_kv_heads: int,
    items: I64,
    first: int,
    stop: int,
) -> None:
    """Write the blocks of segments first .. stop-1, which are full, into their column.

    items: base addresses of the segments of a column of `block_item_bytes`; see `layout`.
    """
    check_stored("blocks: segments", first, stop, min(len(segments), len(items)))
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
    _block_keys(_keys.fill(keys), n_kv_heads, rotation.bits, first, stop)


class BlockScratch(SearchScratch):
    """Memory for `best_in_blocks`."""

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        n = self.together
        queries = aligned((threads, n, self.bits), np.float32)
        queries[:] = 0
        scan = Scan(
            queries=queries,
            reach=np.empty((threads, n), np.float32),
            units=np.empty((threads, n), np.float32),
            mean_scores=aligned((threads, 2, n, BLOCKS), np.float32),
            bounds=aligned((threads, 2, n, BLOCKS), np.float32),
            masks=np.empty((threads, 2, n), np.uint64),
            sums=aligned((threads, 64), np.float32),
        )
        arrays = Scratch(search=self.search, scan=scan)
        self.query, self.arguments = Arguments(Query), Arguments.fixed(arrays)


def best_in_blocks(
    q: F32,
    keys: BlockedKeys,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    scanned: I64,
    *,
    scratch: BlockScratch,
) -> None:
    """Lists of tokens as `best_sketched`; the bound of a block caps the estimates of its tokens.

    Segments of the column below among.stop // 1024 are built; all tokens of the open segment are
    candidates. scanned int64 (J,): becomes how many blocks were scanned for each KV head.
    """
    s = scratch
    wanted = check_search("blocks", q, among, wanted, lists, s.none_taken, s)
    check_columns("blocks", among.stop, keys.segments)
    check_columns("blocks", among.stop // SEGMENT * SEGMENT, keys.items)
    if scanned.shape != (s.n_kv_heads,) or scanned.dtype != np.int64:
        raise OpsError(
            f"blocks: scanned is {scanned.dtype} {scanned.shape}, expected int64 ({s.n_kv_heads},)"
        )
    s.ready(n_threads())
    choose = _in_blocks(*s.layout.codes, s.bits, s.together)
    query = s.query.fill(Query(q, keys, s.none_taken, lists, scanned))
    choose(query, s.arguments.address, s.n_kv_heads, *among, *wanted)
