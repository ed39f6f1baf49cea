"""The checking wrappers of the recurrent operations. Imports no Numba."""

import numpy as np

from ...jit.arena import aligned
from ...jit.launch import Arguments, DefinedKernel, lazy_kernel, lazy_kernels
from ..arrays import F32
from ..attention.checks import check_floats
from ..errors import OpsError
from .arguments import Convolution, DeltaInputs, DeltaSteps
from .layout import DeltaHeads
from .scan import selective_scan as selective_scan  # noqa: PLC0414 (devices have it from here)

TOKENS = 64
"""Tokens whose steps are prepared at a time: their unit keys and queries stay in the caches."""
_WIDEST = 8  # rows of a convolution; models have 3 or 4
_SERIAL_FLOATS = 16_384  # inputs of this size take less time than waking the threads


@lazy_kernels
def _convolution(width: int, gated: bool) -> DefinedKernel:
    from .convolution import make_convolution

    return make_convolution(width, gated)


@lazy_kernel
def _steps_kernel() -> DefinedKernel:
    from .delta_steps import steps_kernel

    return steps_kernel


@lazy_kernel
def _delta_kernel() -> DefinedKernel:
    from .delta_rule import delta_kernel

    return delta_kernel


@lazy_kernel
def _gated_norm_kernel() -> DefinedKernel:
    from .norms import gated_norm_kernel

    return gated_norm_kernel


def _address(x: F32 | None) -> int:
    return 0 if x is None else int(x.ctypes.data)


def _convolve(
    name: str, x: F32, weight: F32, bias: F32 | None, state: F32, out: F32, silu: bool, gated: bool
) -> None:
    if weight.ndim != 2 or not 2 <= len(weight) <= _WIDEST:
        raise OpsError(f"{name}: weight is {weight.shape}, expected 2 to {_WIDEST} rows")
    width, n = weight.shape
    check_floats(f"{name}: weight", weight, (width, n))
    check_floats(f"{name}: x", x, (len(x), 3 * n if gated else n))
    check_floats(f"{name}: state", state, (width - 1, n))
    check_floats(f"{name}: out", out, (len(x), n))
    if bias is not None:
        check_floats(f"{name}: bias", bias, (n,))
    if not len(x):
        return
    addresses = _address(x), _address(weight), _address(bias), _address(state), _address(out)
    rows = Convolution(*addresses, n, silu)
    _convolution(width, gated)(*rows, len(x), parallel=x.size > _SERIAL_FLOATS)


def short_conv(
    x: F32, weight: F32, state: F32, out: F32, *, bias: F32 | None = None, silu: bool = False
) -> None:
    """out[t] = sum over i < K of weight[i] x[t - K + 1 + i] (+ bias), (then y / (1 + exp(-y))).

    A causal convolution of each channel. x, out float32 (T, C), not the same; weight (K, C), the
    oldest row first, K from 2 to 8; bias (C,); state (K - 1, C): the rows before x, and afterwards
    the last ones, zeros before a text. Raises OpsError where shapes do not fit.
    """
    _convolve("short_conv", x, weight, bias, state, out, silu, False)


def gated_short_conv(bcx: F32, weight: F32, state: F32, out: F32) -> None:
    """out = c * conv(b * x), where a row of bcx is b, c and x, and conv is `short_conv`.

    bcx float32 (T, 3 C), out (T, C); weight (K, C); state (K - 1, C): the rows of b * x before
    these. Source: LFM2 (transformers' Lfm2ShortConv). Raises OpsError where shapes do not fit.
    """
    _convolve("gated_short_conv", bcx, weight, None, state, out, False, True)


class DeltaScratch:
    """Memory for `gated_delta_rule`; nothing is allocated later.

    eps: added to the squared lengths of q and k. Raises OpsError for heads that do not fit.
    """

    def __init__(self, heads: DeltaHeads, eps: float = 1e-6) -> None:
        heads.check()
        self.heads, self.eps = heads, eps
        gates = TOKENS, -(-heads.n_values // 16) * 16
        steps = DeltaSteps(
            keys=aligned((heads.n_keys, TOKENS, 2, heads.key_dim), np.float32),
            products=aligned((TOKENS, heads.n_keys), np.float32),
            decays=aligned(gates, np.float32),
            betas=aligned(gates, np.float32),
        )
        self.steps = Arguments.fixed(steps)


def gated_delta_rule(
    qkv: F32, b: F32, a: F32, rates: F32, bias: F32, state: F32, out: F32, scratch: DeltaScratch
) -> None:
    """For each token t and value head, whose state S is float32 (D_k, D_v):

        S = exp(g) S;  S = S + beta k (v - S^T k)^T;  out = S^T q / sqrt(D_k)
        g = rates softplus(a + bias), beta = sigmoid(b); q and k divided by sqrt(x . x + eps)

    qkv float32 (T, 2 H_k D_k + H_v D_v): the heads of q, of k, of v (`DeltaHeads`); b, a (T, H_v);
    rates (-exp(A_log)), bias (H_v,); state of shape `DeltaHeads.state_shape`, zeros before a text,
    changed in place; out (T, H_v, D_v). Reads and writes the state once in 64 tokens. Raises
    OpsError where shapes do not fit. Source: Gated Delta Networks, arXiv 2412.06464, equation 10.
    """
    s, heads, n_tokens = scratch, scratch.heads, len(qkv)
    n = heads.n_values
    check_floats("delta rule: qkv", qkv, (n_tokens, heads.row))
    check_floats("delta rule: b", b, (n_tokens, n))
    check_floats("delta rule: a", a, (n_tokens, n))
    check_floats("delta rule: rates", rates, (n,))
    check_floats("delta rule: bias", bias, (n,))
    check_floats("delta rule: state", state, heads.state_shape)
    check_floats("delta rule: out", out, (n_tokens, n, heads.value_dim))
    to_v = 8 * heads.n_keys * heads.key_dim
    for first in range(0, n_tokens, TOKENS):
        some = slice(first, first + TOKENS)
        x, m = qkv[some], min(TOKENS, n_tokens - first)
        inputs = DeltaInputs(_address(b[some]), _address(a[some]), _address(rates), _address(bias))
        place, steps = _address(x), s.steps.address
        _steps_kernel(place, *inputs, steps, m, *heads, s.eps, parallel=x.size > _SERIAL_FLOATS)
        _delta_kernel(place + to_v, steps, _address(state), _address(out[some]), m, *heads)


def gated_rms_norm(x: F32, weight: F32, gate: F32, eps: float, out: F32) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight * gate / (1 + exp(-gate)), for each row.

    x, gate, out float32 (T * heads, D), weight (D,). out may be x or gate. Raises OpsError where
    shapes do not fit.
    """
    if x.ndim != 2:
        raise OpsError(f"gated_rms_norm: x is {x.shape}, expected (rows, columns)")
    for name, array in (("x", x), ("gate", gate), ("out", out)):
        check_floats(f"gated_rms_norm: {name}", array, x.shape)
    check_floats("gated_rms_norm: weight", weight, x.shape[1:])
    rows, addresses = x.shape, (_address(weight), _address(gate), _address(out))
    _gated_norm_kernel(_address(x), *rows, *addresses, eps, parallel=x.size > _SERIAL_FLOATS)
