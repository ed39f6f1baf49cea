"""The checking wrappers over the stored keys themselves: the largest products, or all of them."""

import numpy as np

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...arrays import F32, I64, U64
from ...attention.layout import TileLayout
from ...attention.work import WORK_BYTES
from ...errors import OpsError
from ..choice import (
    KeyScratch,
    Lists,
    Range,
    SelectScratch,
    Wanted,
    check_choice,
    check_columns,
    check_query,
)
from .arguments import AllProducts, Query, Scratch


@lazy_kernels
def _flat(k_type: int, v_type: int, blocks: int, together: int) -> DefinedKernel:
    from .scan import make_flat

    return make_flat(k_type, v_type, blocks, together)


@lazy_kernels
def _products(k_type: int, v_type: int, blocks: int, together: int) -> DefinedKernel:
    from .scan import make_products

    return make_products(k_type, v_type, blocks, together)


class ExactScratch(KeyScratch, SelectScratch):
    """Memory for `largest` and `products`."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k, layout)
        self.passes = -(-self.group // 4)
        self.together = -(-self.group // self.passes)

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        shape = threads, self.passes * self.together, self.layout.padded
        self.rows = aligned(shape, np.float32)
        self.rows[:] = 0
        self.works = aligned((threads, WORK_BYTES), np.uint8)
        arrays = Scratch(rows=self.rows, works=self.works, candidates=self.candidates)
        self.query, self.arguments = Arguments(Query), Arguments.fixed(arrays)
        self.all = Arguments(AllProducts)


def largest(
    q: F32,
    segments: I64,
    among: Range,
    wanted: Wanted,
    lists: Lists,
    *,
    taken: U64 | None = None,
    scratch: ExactScratch,
) -> None:
    """Lists of tokens: of `among`, the union of the k largest q . key of each query head.

    q float32 (1, H, E); the rest as `nearest`. `position_hash` breaks ties.
    """
    s, name, k = scratch, "largest products", wanted.k
    taken = s.none_taken if taken is None else taken
    check_choice(name, among, k, lists, taken, s)
    check_query(name, q, s, s.layout.head_dim)
    check_columns(name, among.stop, segments)
    s.ready(n_threads())
    query, choose = Query(q, segments, taken, lists), _flat(*s.layout.codes, s.together)
    choose(s.query.fill(query), s.arguments.address, s.n_kv_heads, *among, k, wanted.seed)


def products(q: F32, segments: I64, stop: int, out: F32, *, scratch: ExactScratch) -> None:
    """out[h, t] = q[h] . key t of the tokens 0 .. stop-1; q float32 (1, H, E), out (H, >= stop)."""
    s = scratch
    check_query("products", q, s, s.layout.head_dim)
    check_columns("products", stop, segments)
    if out.shape[0] != q.shape[1] or out.shape[1] < stop or out.dtype != np.float32:
        raise OpsError(f"products: out is {out.dtype} {out.shape}, expected ({q.shape[1]}, {stop})")
    s.ready(n_threads())
    all_of = AllProducts(q=q, segments=segments, rows=s.rows, works=s.works, out=out)
    _products(*s.layout.codes, s.together)(s.all.fill(all_of), s.n_kv_heads, stop)
