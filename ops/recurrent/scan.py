"""The checking wrapper of the selective scan. Imports no Numba."""

from ...jit.launch import DefinedKernel, lazy_kernel
from ..arrays import F32
from ..attention.checks import check_floats
from .scan_layout import ScanHeads, ScanRows


@lazy_kernel
def _scan_kernel() -> DefinedKernel:
    from .scan_kernel import scan_kernel

    return scan_kernel


def selective_scan(
    xbc: F32, dt: F32, rates: F32, bias: F32, skip: F32, state: F32, out: F32, heads: ScanHeads
) -> None:
    """For each token t and head, whose state S is float32 (N, P):

        S = exp(rate s) S + B (s x)^T;  out = S^T C + skip x,  s = softplus(dt + bias)

    xbc float32 (T, H P + 2 G N): x of the heads, B and C of the groups (`ScanHeads`); dt (T, H);
    rates (-exp(A_log)), bias and skip (H,); state of shape `ScanHeads.state_shape`, zeros before a
    text, changed in place; out (T, H, P). Reads and writes the state once. Raises OpsError where
    shapes do not fit. Source: Mamba 2, arXiv 2405.21060, equations 1 and 2.
    """
    heads.check()
    n_tokens, n = len(xbc), heads.n_heads
    check_floats("selective scan: xbc", xbc, (n_tokens, heads.row))
    check_floats("selective scan: dt", dt, (n_tokens, n))
    for name, x in (("rates", rates), ("bias", bias), ("skip", skip)):
        check_floats(f"selective scan: {name}", x, (n,))
    check_floats("selective scan: state", state, heads.state_shape)
    check_floats("selective scan: out", out, (n_tokens, n, heads.head_dim))
    arrays = xbc, dt, rates, bias, skip, state, out
    rows = ScanRows(*(int(x.ctypes.data) for x in arrays))
    _scan_kernel(*rows, n_tokens, *heads)
