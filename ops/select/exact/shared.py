"""All products with stored rows that are keys and values at once. Imports no Numba."""

from ....jit.launch import DefinedKernel, lazy_kernels
from ....jit.threads import n_threads
from ..choice import F32, I64, check_columns, check_query
from .api import ExactScratch
from .arguments import AllProducts


@lazy_kernels
def _products(code: int, blocks: int, together: int) -> DefinedKernel:
    from .shared_scan import make_products

    return make_products(code, blocks, together)


def shared_products(q: F32, segments: I64, stop: int, out: F32, *, scratch: ExactScratch) -> None:
    """`products`, for a scratch of a `SharedLayout`.

    out[h, t] = q[h] . row t of the tokens 0 .. stop-1; q float32 (1, H, E), out (H, >= stop).
    """
    s = scratch
    check_query("products", q, s, s.layout.head_dim)
    check_columns("products", stop, segments)
    s.ready(n_threads())
    all_of = AllProducts(q=q, segments=segments, rows=s.rows, works=s.works, out=out)
    code, _, blocks = s.layout.codes
    _products(code, blocks, s.together)(s.all.fill(all_of), s.n_kv_heads, stop)
