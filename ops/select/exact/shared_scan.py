"""The kernel of `shared_products`."""

from ....jit import simd as v
from ....jit.launch import DefinedKernel
from ....jit.launch.atomics import take
from ....jit.launch.define import Share, kernel
from ....jit.launch.views import address
from ...attention.decode.scores import key_scores
from ...attention.layout import SEGMENT
from ...attention.shared.shape import shape_of
from ...attention.work import HEAD_SCORES
from ..queries import pack_queries
from .arguments import AllProducts


def make_products(code: int, blocks: int, heads: int) -> DefinedKernel:
    """The kernel for a type of rows of 32 * blocks and `heads` query heads at a time. Item i is
    segment i // J of KV head i % J."""

    @kernel
    def shared_products_kernel(share: Share, arrays: AllProducts, n_kv_heads: int, stop: int):
        """out float32[H, S] = q . row of the tokens 0 .. stop-1, S >= stop. Reads the rows and
        scales once for each pass."""
        q, out, rows = arrays.q, arrays.out, arrays.rows[share.part]
        group, s = q.shape[1] // n_kv_heads, address(arrays.works[share.part])
        shape = shape_of(code, blocks, heads)
        n_items = (stop + SEGMENT - 1) // SEGMENT * n_kv_heads
        item = take(share.ticket)
        while item < n_items:
            segment, j = item // n_kv_heads, item % n_kv_heads
            pack_queries(shape, q, j, group, rows)
            base = arrays.segments[segment] + j * shape.head_bytes
            hi = min(stop - segment * SEGMENT, SEGMENT)
            for g in range(0, group, heads):
                key_scores(shape, address(rows[g]), base, 0, hi, s + 4 * HEAD_SCORES, s, base)
                for h in range(g, min(g + heads, group)):
                    for t in range(hi):
                        score = v.load_one_f32(s, (h - g) * HEAD_SCORES + 4 * t)
                        out[j * group + h, segment * SEGMENT + t] = score
            item = take(share.ticket)

    return shared_products_kernel
