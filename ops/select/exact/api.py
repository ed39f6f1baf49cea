"""The checking wrappers over the stored keys themselves: the largest products, or all of them."""

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ...attention.arguments import Scoring
from ...attention.layout import SEGMENT, TileLayout
from ...attention.work import WORK_BYTES
from ...errors import OpsError
from ..choice import F32, I64, U64, Lists, Range, SelectScratch, check_choice, check_query
from .arguments import AllProducts, Query, Scratch

UNSCALED = Scoring(1.0, 0.0)
NO_TOTALS = np.empty((0, 2), np.float32)


@lazy_kernels
def _flat(k_type: int, v_type: int, blocks: int, together: int) -> DefinedKernel:
    from .scan import make_flat

    return make_flat(k_type, v_type, blocks, together)


@lazy_kernels
def _products(k_type: int, v_type: int, blocks: int, together: int) -> DefinedKernel:
    from .scan import make_products

    return make_products(k_type, v_type, blocks, together)


class ExactScratch(SelectScratch):
    """SelectScratch with what products with the stored keys of one layout need."""

    def __init__(
        self, n_heads: int, n_kv_heads: int, n_ctx: int, k: int, layout: TileLayout
    ) -> None:
        super().__init__(n_heads, n_kv_heads, n_ctx, k)
        self.layout = layout
        self.passes = -(-self.group // 4)
        self.together = -(-self.group // self.passes)

    def allocate(self, threads: int) -> None:
        super().allocate(threads)
        shape = threads, self.passes * self.together, self.layout.padded
        self.rows = aligned(shape, np.float32)
        self.rows[:] = 0
        self.works = aligned((threads, WORK_BYTES), np.uint8)
        arrays = Scratch(rows=self.rows, works=self.works, found=self.found)
        self.query, self.arguments = Arguments(Query), Arguments.fixed(arrays)
        self.all = Arguments(AllProducts)


def _check(name: str, q: F32, segments: I64, stop: int, s: ExactScratch) -> None:
    check_query(name, q, s, s.layout.head_dim)
    if stop > len(segments) * SEGMENT:
        raise OpsError(f"{name}: token {stop - 1} lies outside {len(segments)} segments")


def largest(
    q: F32,
    segments: I64,
    among: Range,
    k: int,
    index: NDArray[np.uint32],
    counts: I64,
    *,
    seed: int,
    taken: U64 | None = None,
    scratch: ExactScratch,
    scoring: Scoring = UNSCALED,
    totals: F32 = NO_TOTALS,
) -> None:
    """Lists of tokens: of `among`, the union of the k largest q . key of each query head.

    q float32 (1, H, E); the rest as `nearest`. `position_hash` breaks ties. totals float32 (H, 2),
    or none: filled with the greatest score of the tokens of `among`, and their sum of
    exp(score - greatest).
    """
    s = scratch
    taken = s.none_taken if taken is None else taken
    check_choice("largest products", among, k, Lists(index, counts), taken, s)
    _check("largest products", q, segments, among.stop, s)
    if totals.size and totals.shape != (q.shape[1], 2):
        raise OpsError(f"largest products: totals are {totals.shape}, expected ({q.shape[1]}, 2)")
    s.ready(n_threads())
    query = s.query.fill(
        Query(q=q, segments=segments, taken=taken, lists=index, counts=counts, totals=totals)
    )
    choose = _flat(*s.layout.codes, s.together)
    choose(query, s.arguments.address, s.n_kv_heads, *among, k, seed, *scoring)


def products(q: F32, segments: I64, stop: int, out: F32, *, scratch: ExactScratch) -> None:
    """out[h, t] = q[h] . key t of the tokens 0 .. stop-1; q float32 (1, H, E), out (H, >= stop)."""
    s = scratch
    _check("products", q, segments, stop, s)
    if out.shape[0] != q.shape[1] or out.shape[1] < stop or out.dtype != np.float32:
        raise OpsError(f"products: out is {out.dtype} {out.shape}, expected ({q.shape[1]}, {stop})")
    s.ready(n_threads())
    all_of = AllProducts(q=q, segments=segments, rows=s.rows, works=s.works, out=out)
    _products(*s.layout.codes, s.together)(s.all.fill(all_of), s.n_kv_heads, stop)
