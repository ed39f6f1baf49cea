"""The checking wrapper of attention in texts. Imports no Numba."""

from __future__ import annotations

import numpy as np

from ....jit.arena import aligned
from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ....jit.threads import n_threads
from ...arrays import F32
from ...errors import OpsError
from ..checks import check_floats
from .work import TextRows, Texts, work_floats


@lazy_kernel
def _text_kernel() -> DefinedKernel:
    from .kernels import text_kernel

    return text_kernel


class TextScratch:
    """Memory for `text_attention` with heads of `head_dim` numbers."""

    def __init__(self, head_dim: int) -> None:
        self.head_dim, self.arguments = head_dim, Arguments(TextRows)
        self._works: F32 = np.empty((0, 0), np.float32)

    def works(self, threads: int) -> F32:
        """Memory for each of `threads` threads; allocates only to grow."""
        if len(self._works) < threads:
            # An odd number of cache lines puts the threads' memory into different cache sets.
            floats = -(-work_floats(self.head_dim) // 32) * 32 + 16
            self._works = aligned((threads, floats), np.float32)
        return self._works


def text_attention(
    qkv: tuple[F32, F32, F32], texts: Texts, window: int, out: F32, scratch: TextScratch
) -> None:
    """out[t, h] = softmax over the tokens i of t's text of q[t, h] . k_i / sqrt(E), times V.

    qkv: q float32 (N, H, E), k and v (N, J, E), whose heads are read by H / J query heads each;
    out float32 (N, H, E). window: a token reads those that are at most window // 2 before or after
    it; 0: all. A text's bits depend neither on the other texts nor on the number of threads. Raises
    OpsError where shapes do not fit.
    """
    q, k, v = qkv
    n_rows, n_heads, head_dim = texts.n_rows, *q.shape[1:]
    n_kv_heads = k.shape[1]
    if head_dim != scratch.head_dim or n_kv_heads < 1 or n_heads % n_kv_heads or window < 0:
        raise OpsError(
            f"attention in texts: {n_heads} heads of {head_dim} over {n_kv_heads}, window {window},"
            f" expected heads of {scratch.head_dim} that share KV heads evenly, a window from 0 on"
        )
    for name, x in (("q", q), ("out", out), ("k", k), ("v", v)):
        heads = n_kv_heads if x is k or x is v else n_heads
        check_floats(f"attention in texts: {name}", x, (n_rows, heads, head_dim))
    works = scratch.works(n_threads())
    given = TextRows(q=q, k=k, v=v, out=out, blocks=texts.blocks, works=works)
    _text_kernel(scratch.arguments.fill(given), window, head_dim**-0.5)
