"""The checking wrapper, and its scratch. Imports no Numba."""

import numpy as np

from ....jit.launch import Arguments, DefinedKernel, lazy_kernel
from ...arrays import F32
from ...errors import OpsError
from ..checks import check_floats
from .arguments import Parts

_SERIAL_ELEMENTS = 1 << 16  # merging these costs less than waking the threads
NO_SINKS: F32 = np.empty(0, np.float32)


@lazy_kernel
def _merge() -> DefinedKernel:
    from .kernel import merge_parts_kernel

    return merge_parts_kernel


class MergeScratch:
    """Memory for merging P parts of up to n_rows rows of n_heads query heads."""

    def __init__(self, n_parts: int, n_rows: int, n_heads: int) -> None:
        self.weights = np.empty((n_rows * n_heads, n_parts), np.float64)
        self.arguments = Arguments(Parts)


def merge_parts(
    outs: F32, masses: F32, out: F32, *, sinks: F32 = NO_SINKS, scratch: MergeScratch
) -> None:
    """out = sum_p w_p outs[p] / (sum_p w_p + exp(sinks - m)), w_p = total_p exp(m_p - m).

    outs float32 (P, T, H, E) of P disjoint parts of the tokens; masses float32 (P, T, H, 2): m_p,
    which was subtracted from the scores of part p, and the total of exp(score - m_p); m: the
    largest m_p; sinks float32 (H,), or (0,) without; out float32 (T, H, E). Summed in float64, part
    after part: bit-equal for any number of threads. Raises OpsError where shapes do not fit.
    """
    n_parts, n_rows, n_heads, _ = outs.shape
    check_floats("merging parts: outputs", outs, (n_parts, *out.shape))
    check_floats("merging parts: masses", masses, (n_parts, n_rows, n_heads, 2))
    check_floats("merging parts: out", out, outs.shape[1:])
    if len(sinks):
        check_floats("merging parts: sinks", sinks, (n_heads,))
    rows, width = scratch.weights.shape
    if width != n_parts or rows < n_rows * n_heads:
        raise OpsError(
            f"merging parts: {n_parts} parts of {n_rows * n_heads} rows and heads, expected "
            f"{width} of up to {rows}"
        )
    given = scratch.arguments.fill(Parts(outs, masses, sinks, scratch.weights, out))
    _merge(given, parallel=outs.size > _SERIAL_ELEMENTS)
