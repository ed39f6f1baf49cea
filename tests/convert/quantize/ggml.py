"""llama.cpp's encoders as the oracle, through the library that llama-cpp-python brings."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from llama_cpp import _ggml
from numpy.typing import NDArray

from kvarn.ops.types import QUANT_TYPES, row_bytes


def quantise_rows(
    x: NDArray[np.float32], type_name: str, importance: NDArray[np.float32] | None
) -> NDArray[np.uint8]:
    """The rows as `ggml_quantize_chunk` encodes them, by one thread."""
    quant_type = QUANT_TYPES[type_name]
    out = np.empty((len(x), row_bytes(quant_type, x.shape[1])), np.uint8)
    function = _ggml.libggml.ggml_quantize_chunk
    function.restype = ctypes.c_size_t
    n = ctypes.c_int64
    written = function(
        ctypes.c_int(quant_type.ggml_id),
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_void_p(out.ctypes.data),
        n(0),
        n(len(x)),
        n(x.shape[1]),
        ctypes.c_void_p(None if importance is None else importance.ctypes.data),
    )
    assert written == out.nbytes
    return out


class _ImatrixData(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    )


def quantise_file(
    source: Path,
    target: Path,
    file_type: gguf.LlamaFileType,
    imatrix: Mapping[str, NDArray[np.float32]] | None = None,
    pure: bool = False,
) -> None:
    """The file as `llama_model_quantize` writes it. Raises RuntimeError where it refuses."""
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p())
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.pure = 1, int(file_type), pure
    if imatrix is not None:
        entries = [
            _ImatrixData(name.encode(), v.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), v.size)
            for name, v in imatrix.items()
        ]
        array = (_ImatrixData * (len(entries) + 1))(*entries, _ImatrixData(None, None, 0))
        params.imatrix = ctypes.cast(array, type(params.imatrix))
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    )
    if status:
        raise RuntimeError(f"llama_model_quantize returned {status}")


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, user: object) -> None:
    """llama.cpp keeps it, and may call it whenever the process uses it again."""
