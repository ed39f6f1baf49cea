"""The one entry to all matrix kernels: y = x W^T for weights of any type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..arena import Arena
from ..errors import OpsError
from ..steps import Step
from ..threads import n_threads
from ..types import QUANT_TYPES
from .activations import Activations
from .decode.batch import MOST, batch_kernel
from .decode.interleaved import interleaved_kernel
from .decode.rows import matvec_kernel
from .floats import (
    float_matmul_kernel,
    float_matvec_kernel,
    float_scratch_bytes,
)
from .formats import FORMATS, KINDS
from .lookup import get_rows
from .prefill.matmul import matmul_kernel, scratch_bytes
from .prefill.tiles import group_layout
from .weight import Weight

_FLOAT = np.dtype(np.float32)


def _few_tokens(kind: int, n_tokens: int, interleaved: bool) -> tuple[Step, tuple[int, ...]]:
    """The kernel for up to `MOST` tokens of a quantised type, and what it has to be told of T."""
    if interleaved:
        return interleaved_kernel(kind, n_tokens if n_tokens <= 2 else MOST), (n_tokens,)
    return (batch_kernel(kind), (n_tokens,)) if n_tokens > 1 else (matvec_kernel(kind), ())


def linear(act: Activations, weight: Weight, out: npt.NDArray[np.float32]) -> None:
    """out = x W^T for the T vectors that `act` holds: out float32[T, N], overwritten.

    out[t, r] = sum_k x[t, k] W[r, k]. Quantised weights meet x quantised to int8, plain floats meet
    x itself. The result is the same for any number of threads. Reads `weight.n_bytes` once (T = 1)
    and allocates nothing once the buffers of `act` exist. Products of one `act` write to different
    places: for T = 1 they may run side by side. Raises OpsError for shapes that do not fit.
    """
    x = act.x
    n_tokens, n_cols = x.shape
    if n_cols != weight.n_cols or out.shape != (n_tokens, weight.n_rows):
        raise OpsError(
            f"multiplying by {weight.name or 'weights'}: found x {x.shape} and out {out.shape} for"
            f" {weight.n_rows} rows of {weight.n_cols}, expected x (T, {weight.n_cols}) and out"
            f" (T, {weight.n_rows})"
        )
    if out.dtype != _FLOAT or not out.flags.c_contiguous:
        raise OpsError(
            f"multiplying by {weight.name or 'weights'}: found out of {out.dtype}, expected"
            " contiguous float32"
        )
    if not n_tokens or not weight.n_rows:
        return
    place = weight.products_address, weight.data.shape[1], weight.n_rows
    name, interleaved = weight.stored_type.name, weight.interleaved is not None
    kind, threads = KINDS.get(name), n_threads()
    if kind is None and n_tokens == 1:
        kernel = float_matvec_kernel(name)
        kernel(*place, x.ctypes.data, n_cols, out.ctypes.data, group=act.counter)
    elif kind is None:
        scratch = act.scratch(threads, float_scratch_bytes(n_tokens))
        float_matmul_kernel(name)(*place, x, out, *scratch, act.counter, threads)
    elif n_tokens <= MOST:
        block = FORMATS[kind].block
        kernel, more = _few_tokens(kind, n_tokens, interleaved)
        inputs = (*act.quantised(block), n_cols // block, out.ctypes.data, *more)
        kernel(*place, *inputs, group=act.counter)
    else:
        x_groups = act.grouped(group_layout(kind))
        scratch = act.scratch(threads, scratch_bytes(kind, n_tokens))
        inputs = x_groups, n_cols // FORMATS[kind].block, out.ctypes.data, n_tokens
        matmul_kernel(kind, interleaved)(*place, *inputs, *scratch)


def warm(types: Sequence[str]) -> None:
    """Compile, or load from the cache, every kernel that weights of these types need.

    Those for rows that do not come by the 16 are left to the matrices that have such.
    """
    for name in types:
        quant_type = QUANT_TYPES[name]
        n_cols = max(quant_type.block, 32)
        data = np.zeros((16, n_cols // quant_type.block * quant_type.n_bytes), np.uint8)
        weight = Weight.prepare(quant_type, data, n_cols, "warm", Arena())
        act = Activations(MOST + 1, n_cols)
        get_rows(weight, np.zeros(1, np.int32), np.empty((1, n_cols), np.float32))
        for n_tokens in (1, 2, MOST, MOST + 1):
            x, out = np.zeros((n_tokens, n_cols), np.float32), np.empty((n_tokens, 16), np.float32)
            linear(act.set(x), weight, out)
