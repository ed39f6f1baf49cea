"""Products y = x W^T for weights of any type, and single rows of W. Imports no Numba."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ...jit.launch import DefinedKernel, Kernel, lazy_kernels
from ...jit.threads import n_threads
from ..errors import OpsError
from .activations import Activations
from .arguments import FloatMatmulTraits, MatmulTraits, Output
from .decode import MAX_TOKENS
from .weight import Weight

_FLOAT = np.dtype(np.float32)


@lazy_kernels
def _rows(type_name: str, tokens: int) -> DefinedKernel:
    from .decode.rows import make_rows

    return make_rows(type_name, tokens)


@lazy_kernels
def _interleaved(type_name: str, tokens: int) -> DefinedKernel:
    from .decode.interleaved import make_interleaved

    return make_interleaved(type_name, tokens)


@lazy_kernels
def _alone(type_name: str, interleaved: bool) -> DefinedKernel:
    from .decode.alone import make_alone

    return make_alone(type_name, interleaved)


@lazy_kernels
def _alone_floats(type_name: str) -> DefinedKernel:
    from .decode.alone import make_alone_floats

    return make_alone_floats(type_name)


@lazy_kernels
def _matmul(type_name: str, interleaved: bool) -> DefinedKernel:
    from .prefill.matmul import make_matmul

    return make_matmul(type_name, interleaved)


@lazy_kernels
def _float_matvec(type_name: str) -> DefinedKernel:
    from .floats import make_float_matvec

    return make_float_matvec(type_name)


@lazy_kernels
def _float_matmul(type_name: str) -> DefinedKernel:
    from .floats import make_float_matmul

    return make_float_matmul(type_name)


@lazy_kernels
def _get_rows(type_name: str) -> DefinedKernel:
    from .single_rows import make_get_rows

    return make_get_rows(type_name)


def _few_tokens(type_name: str, n_tokens: int, interleaved: bool) -> Kernel:
    """The kernel for a quantised type that gives each token the bits that it has alone."""
    if n_tokens > MAX_TOKENS:
        return _alone(type_name, interleaved)
    kernels = _interleaved if interleaved else _rows
    return kernels(type_name, n_tokens if n_tokens <= 2 else MAX_TOKENS)


@cache
def _many_tokens(type_name: str, interleaved: bool) -> tuple[Kernel, MatmulTraits]:
    """The kernel for more tokens, and its traits."""
    kernel = _matmul(type_name, interleaved)
    return kernel, MatmulTraits(*kernel.traits)


def linear(act: Activations, weight: Weight, out: npt.NDArray[np.float32]) -> None:
    """out = x W^T for the T vectors of `act`: out float32[T, N], overwritten.

    out[t, r] = sum_k x[t, k] W[r, k]. Multiplies quantised weights by x quantised to int8, and
    plain floats by x itself. The result is the same for any number of threads. Reads
    `weight.n_bytes` once (T = 1, or `act.alone`) and allocates nothing once the buffers of `act`
    exist. Products of one `act` with T = 1 may run side by side. Raises OpsError for shapes that do
    not fit.
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
    stored, interleaved = weight.stored_type, weight.interleaved is not None
    w, n_blocks = weight.product_matrix, n_cols // stored.block
    y = Output(out.ctypes.data, 4 * weight.n_rows, n_tokens)
    if stored.block == 1 and (n_tokens == 1 or act.alone):
        floats = _float_matvec if n_tokens == 1 else _alone_floats
        floats(stored.name)(*w, x.ctypes.data, n_cols, *y, group=act.group)
    elif stored.block == 1:
        kernel = _float_matmul(stored.name)
        n_bytes = FloatMatmulTraits(*kernel.traits).buffer_bytes(n_tokens)
        kernel(*w, x.ctypes.data, n_cols, *y, *act.scratch(n_threads(), n_bytes))
    elif n_tokens <= MAX_TOKENS or act.alone:
        kernel = _few_tokens(stored.name, n_tokens, interleaved)
        quantised = act.quantised(stored.block).addresses
        kernel(*w, *quantised, n_blocks, *y, group=act.group)
    else:
        kernel, traits = _many_tokens(stored.name, interleaved)
        groups = act.grouped(traits.activations)
        scratch = act.scratch(n_threads(), traits.buffer_bytes(n_tokens))
        kernel(*w, groups, n_blocks, *y, *scratch)


def get_rows(weight: Weight, ids: npt.NDArray[np.int32], out: npt.NDArray[np.float32]) -> None:
    """Rows of the matrix as floats, such as embeddings of tokens: out[t] = W[ids[t]], exactly.

    ids int32[T] and out float32[T, K], both contiguous. Raises OpsError for ids outside the matrix
    and for other shapes and types. A graph reads `ids` again at each run, unchecked: callers check
    ids that they change.
    """
    for name, x, dtype, shape in (
        ("out", out, np.float32, (len(ids), weight.n_cols)),
        ("ids", ids, np.int32, (len(ids),)),
    ):
        if x.shape != shape or x.dtype != dtype or not x.flags.c_contiguous:
            raise OpsError(
                f"reading rows of {weight.name}: found {name} {x.dtype} {x.shape}, expected"
                f" contiguous {np.dtype(dtype)} {shape}"
            )
    wrong = (ids < 0) | (ids >= weight.n_rows)
    if wrong.any():
        raise OpsError(
            f"reading rows of {weight.name}: found row {int(ids[wrong][0])}, expected 0 to"
            f" {weight.n_rows - 1}"
        )
    n_ids, n_blocks = len(ids), weight.n_cols // weight.stored_type.block
    addresses = ids.ctypes.data, n_ids, n_blocks, out.ctypes.data
    _get_rows(weight.stored_type.name)(*weight.matrix, *addresses, parallel=n_ids > 1)
