"""The selective scan in plain NumPy, one token at a time, in float64."""

import numpy as np
from numpy.typing import NDArray

from ..arrays import F64
from ..recurrent.scan_layout import ScanHeads

Array = NDArray[np.floating]


def unpack_scan_state(state: Array, heads: ScanHeads) -> F64:
    """S (heads, state_size, head_dim) of `ScanHeads.state_shape`."""
    rows = state.astype(np.float64).transpose(0, 2, 1, 3)
    return rows.reshape(heads.n_heads, heads.state_size, -1)[..., : heads.head_dim]


def pack_scan_state(states: F64, heads: ScanHeads) -> F64:
    """`unpack_scan_state`'s inverse."""
    n, blocks, size, columns = heads.state_shape
    rows = np.zeros((n, size, blocks * columns))
    rows[..., : heads.head_dim] = states
    return rows.reshape(n, size, blocks, columns).transpose(0, 2, 1, 3)


def selective_scan_reference(
    xbc: Array, dt: Array, weights: tuple[Array, Array, Array], states: F64, heads: ScanHeads
) -> tuple[F64, F64]:
    """(out (T, H, P), new states (H, N, P)); weights: rates, bias and skip."""
    rates, bias, skip = (x.astype(np.float64) for x in weights)
    n_rows = heads.n_groups * heads.state_size
    x, b, c = np.split(xbc.astype(np.float64), [heads.inner, heads.inner + n_rows], axis=1)
    x = x.reshape(len(x), heads.n_heads, heads.head_dim)
    b, c = (rows.reshape(len(x), heads.n_groups, heads.state_size) for rows in (b, c))
    steps = np.logaddexp(0, dt.astype(np.float64) + bias)
    out, states = np.empty(x.shape), states.copy()
    for h in range(heads.n_heads):
        g = h // (heads.n_heads // heads.n_groups)
        for t in range(len(x)):
            decay = np.exp(rates[h] * steps[t, h])
            states[h] = decay * states[h] + np.outer(b[t, g], steps[t, h] * x[t, h])
            out[t, h] = states[h].T @ c[t, g] + skip[h] * x[t, h]
    return out, states
