"""The operations of recurrent layers in plain NumPy, for `plain`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from kvarn.ops.recurrent import DeltaHeads, ScanHeads
from kvarn.ops.reference import recurrent as reference
from kvarn.ops.reference import scan


def _short_conv(
    x: np.ndarray,
    weight: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
    *,
    bias: np.ndarray | None = None,
    silu: bool = False,
) -> None:
    out[:], state[:] = reference.short_conv_reference(x, weight, state, bias, silu)


def _gated_short_conv(
    bcx: np.ndarray, weight: np.ndarray, state: np.ndarray, out: np.ndarray
) -> None:
    out[:], state[:] = reference.gated_short_conv_reference(bcx, weight, state)


def _gated_delta_rule(
    qkv: np.ndarray,
    b: np.ndarray,
    a: np.ndarray,
    rates: np.ndarray,
    bias: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
    scratch: DeltaHeads,
) -> None:
    states = reference.unpack_state(state, scratch)
    out[:], states = reference.delta_rule_reference(qkv, b, a, (rates, bias), states, scratch)
    state[:] = reference.pack_state(states, scratch)


def _selective_scan(
    xbc: np.ndarray,
    dt: np.ndarray,
    rates: np.ndarray,
    bias: np.ndarray,
    skip: np.ndarray,
    state: np.ndarray,
    out: np.ndarray,
    heads: ScanHeads,
) -> None:
    states = scan.unpack_scan_state(state, heads)
    weights = rates, bias, skip
    out[:], states = scan.selective_scan_reference(xbc, dt, weights, states, heads)
    state[:] = scan.pack_scan_state(states, heads)


def _gated_rms_norm(
    x: np.ndarray, weight: np.ndarray, gate: np.ndarray, eps: float, out: np.ndarray
) -> None:
    out[:] = reference.gated_rms_norm_reference(x, weight, gate, eps)


RECURRENT = SimpleNamespace(
    DeltaScratch=lambda heads: heads,
    short_conv=_short_conv,
    gated_short_conv=_gated_short_conv,
    gated_delta_rule=_gated_delta_rule,
    selective_scan=_selective_scan,
    gated_rms_norm=_gated_rms_norm,
)
