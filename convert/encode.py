"""float32 rows to the bytes of a GGUF type."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from ..ops.types import QUANT_TYPES


def encode(rows: NDArray[np.float32], type_name: str) -> NDArray[np.uint8]:
    """Rows (n, columns) in a type of `QUANT_TYPES`, uint8 (n, bytes of a row)."""
    kind = gguf.GGMLQuantizationType(QUANT_TYPES[type_name].ggml_id)
    return np.ascontiguousarray(quantize(rows, kind)).view(np.uint8)
