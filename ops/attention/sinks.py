"""Attention sinks: one learned logit per head that takes its share of the softmax.

Source: gpt-oss (OpenAI, 2025): the softmax runs over the scores and the head's logit, whose value
is zero. Imports no Numba.
"""

from ...jit.launch import DefinedKernel, lazy_kernel
from ..arrays import F32
from .checks import check_floats


@lazy_kernel
def _kernel() -> DefinedKernel:
    from .sinks_kernel import sinks_kernel

    return sinks_kernel


def add_sinks(out: F32, masses: F32, sink_logits: F32) -> None:
    """Give each head's sink its share: out *= total / (total + exp(sink - m)).

    out float32 (T, H, E): attention without sinks; masses float32 (T, H, 2): m, subtracted from the
    scores of each row, and the total of exp(score - m), which become those with the sink;
    sink_logits float32 (H,). Raises OpsError where shapes do not fit.
    """
    n_rows, n_heads, n = out.shape
    check_floats("sinks: out", out, out.shape)
    check_floats("sinks: masses", masses, (n_rows, n_heads, 2))
    check_floats("sinks: logits", sink_logits, (n_heads,))
    arrays = out.ctypes.data, masses.ctypes.data, sink_logits.ctypes.data
    _kernel(*arrays, n_rows, n_heads, n, parallel=n_rows > 1)
