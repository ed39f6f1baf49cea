"""The one entry to all matrix kernels: y = x W^T for weights of any type. Imports no Numba."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from ...jit.arena import Arena
from ...jit.launch import Kernel, kernels
from ...jit.threads import n_threads
from ..errors import OpsError
from ..types import QUANT_TYPES
from .activations import Activations
from .decode import MOST
from .groups import TOKENS, GroupLayout
from .lookup import get_rows
from .weight import Weight

_FLOAT = np.dtype(np.float32)

_matvec_kernel = kernels(f"{__package__}.decode.rows", "matvec_kernel")
_batch_kernel = kernels(f"{__package__}.decode.batch", "batch_kernel")
_interleaved_kernel = kernels(f"{__package__}.decode.interleaved", "interleaved_kernel")
_matmul_kernel = kernels(f"{__package__}.prefill.matmul", "matmul_kernel")
_float_matvec_kernel = kernels(f"{__package__}.floats", "float_matvec_kernel")
_float_matmul_kernel = kernels(f"{__package__}.floats", "float_matmul_kernel")


def _few_tokens(name: str, n_tokens: int, interleaved: bool) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel for up to `MOST` tokens of a quantised type, and what it has to be told of T."""
    if interleaved:
        return _interleaved_kernel(name, n_tokens if n_tokens <= 2 else MOST), (n_tokens,)
    return (_batch_kernel(name), (n_tokens,)) if n_tokens > 1 else (_matvec_kernel(name), ())


@cache
def _many_tokens(name: str, interleaved: bool) -> tuple[Kernel, GroupLayout, int, int]:
    """The kernel for more; how it reads them, and the bytes that a thread needs: of itself, and for
    each group."""
    kernel = _matmul_kernel(name, interleaved)
    block, words, grain, centre, itself, each = kernel.traits
    return kernel, GroupLayout(block, bool(words), grain, centre), itself, each


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
    stored, interleaved, threads = weight.stored_type, weight.interleaved is not None, n_threads()
    name, n_blocks, y = stored.name, n_cols // stored.block, out.ctypes.data
    if stored.block == 1 and n_tokens == 1:
        _float_matvec_kernel(name)(*place, x.ctypes.data, n_cols, y, group=act.counter)
    elif stored.block == 1:
        kernel = _float_matmul_kernel(name)
        itself, each = kernel.traits
        scratch = act.scratch(threads, itself + n_tokens * each)
        kernel(*place, x.ctypes.data, n_cols, y, n_tokens, *scratch)
    elif n_tokens <= MOST:
        kernel, more = _few_tokens(name, n_tokens, interleaved)
        kernel(*place, *act.quantised(stored.block), n_blocks, y, *more, group=act.counter)
    else:
        kernel, groups, itself, each = _many_tokens(name, interleaved)
        x_groups = act.grouped(groups)
        scratch = act.scratch(threads, itself + -(-n_tokens // TOKENS) * each)
        kernel(*place, x_groups, n_blocks, y, n_tokens, *scratch)


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
