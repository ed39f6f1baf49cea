"""What goes into llama.cpp's matrices, seen as its own `llama-imatrix` sees it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import _ggml


class _Tensor(ctypes.Structure):
    """`struct ggml_tensor`."""


_Tensor._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
)


def _array(tensor: _Tensor, kind: type, dtype: type) -> np.ndarray:
    """A tensor's elements, in ggml's order of axes, the first of which is the nearest."""
    address = ctypes.cast(tensor.data, ctypes.POINTER(kind))
    n_bytes = sum((n - 1) * step for n, step in zip(tensor.ne, tensor.nb)) + ctypes.sizeof(kind)
    flat = np.ctypeslib.as_array(address, (n_bytes // ctypes.sizeof(kind),))
    strides = tuple(tensor.nb[:3])
    view = np.lib.stride_tricks.as_strided(flat, tuple(tensor.ne[:3]), strides)
    return view.astype(dtype)


def means(path: Path, pieces: list[list[int]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Σ x² (matrices, columns) of the inputs of every matrix in a block, and how many inputs there
    were (matrices,), over pieces that are read one by one."""
    sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    op_name = _ggml.libggml.ggml_op_name
    op_name.restype = ctypes.c_char_p

    @llama_cpp.ggml_backend_sched_eval_callback
    def see(address: int, ask: bool, user: object) -> bool:
        tensor = ctypes.cast(address, ctypes.POINTER(_Tensor)).contents
        matrix, op = tensor.src[0].contents, op_name(tensor.op)
        if op not in (b"MUL_MAT", b"MUL_MAT_ID") or not matrix.name.startswith(b"blk."):
            return False
        if not ask:
            # (columns, rows, 1), or (columns, used experts or 1, tokens)
            x = np.square(_array(tensor.src[1].contents, ctypes.c_float, np.float64))
            n = matrix.ne[2]
            empty = np.zeros((n, len(x))), np.zeros(n, np.int64)
            total, count = sums.setdefault(matrix.name.decode(), empty)
            if op == b"MUL_MAT" and n > 1:  # a matrix of each head
                total += x.sum(axis=1).T
                count += x.shape[1]
                return True
            if op == b"MUL_MAT":
                total[0] += x.sum(axis=(1, 2))
                count[0] += x.shape[1] * x.shape[2]
                return True
            ids = _array(tensor.src[2].contents, ctypes.c_int32, np.int64)[:, :, 0]
            for used, token in np.ndindex(ids.shape):
                total[ids[used, token]] += x[:, used % x.shape[1], token]
                count[ids[used, token]] += 1
        return True

    n_ctx = max(map(len, pieces))
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
    params.n_threads = params.n_threads_batch = 1
    params.cb_eval = see
    context = llama_cpp.llama_init_from_model(model, params)
    try:
        for piece in pieces:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            _read(context, piece)
    finally:
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
    return sums


def _read(context: object, ids: list[int]) -> None:
    """With the logits of all tokens: otherwise the last layer leaves tokens out."""
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i] = token, i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
    status = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_batch_free(batch)
    assert status == 0


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, user: object) -> None:
    """llama.cpp's log is no part of a test."""
