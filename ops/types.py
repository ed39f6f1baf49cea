"""The table of tensor types: how many weights share a block, how many bytes a block takes.

Source: ggml's type ids and block sizes, as gguf-py's `GGML_QUANT_SIZES` states them. Does not
import Numba: `kvarn inspect` uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import OpsError

Treatment = Literal["native", "repacked", "re-encoded", "unsupported"]


@dataclass(frozen=True, slots=True)
class QuantType:
    """One way of storing a row of weights: blocks of `block` weights in `n_bytes` bytes each."""

    name: str
    ggml_id: int
    block: int
    n_bytes: int


QUANT_TYPES: dict[str, QuantType] = {
    name: QuantType(name, ggml_id, block, n_bytes)
    for name, ggml_id, block, n_bytes in (
        ("F32", 0, 1, 4),
        ("F16", 1, 1, 2),
        ("Q4_0", 2, 32, 18),
        ("Q4_1", 3, 32, 20),
        ("Q5_0", 6, 32, 22),
        ("Q5_1", 7, 32, 24),
        ("Q8_0", 8, 32, 34),
        ("Q8_1", 9, 32, 40),
        ("Q2_K", 10, 256, 84),
        ("Q3_K", 11, 256, 110),
        ("Q4_K", 12, 256, 144),
        ("Q5_K", 13, 256, 176),
        ("Q6_K", 14, 256, 210),
        ("Q8_K", 15, 256, 292),
        ("IQ2_XXS", 16, 256, 66),
        ("IQ2_XS", 17, 256, 74),
        ("IQ3_XXS", 18, 256, 98),
        ("IQ1_S", 19, 256, 50),
        ("IQ4_NL", 20, 32, 18),
        ("IQ3_S", 21, 256, 110),
        ("IQ2_S", 22, 256, 82),
        ("IQ4_XS", 23, 256, 136),
        ("I8", 24, 1, 1),
        ("I16", 25, 1, 2),
        ("I32", 26, 1, 4),
        ("I64", 27, 1, 8),
        ("F64", 28, 1, 8),
        ("IQ1_M", 29, 256, 56),
        ("BF16", 30, 1, 2),
        ("TQ1_0", 34, 256, 54),
        ("TQ2_0", 35, 256, 66),
        ("MXFP4", 39, 32, 17),
        ("NVFP4", 40, 64, 36),
        ("Q1_0", 41, 128, 18),
    )
}

BY_ID: dict[int, QuantType] = {entry.ggml_id: entry for entry in QUANT_TYPES.values()}

# Ids that ggml once used and withdrew: so that the error for an old file can name its type.
WITHDRAWN: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# fmt: off
_NATIVE = frozenset((
    "F32", "F16", "BF16", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
))
ROWS_SIDE_BY_SIDE = 16
_REPACKED = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"))
_RE_ENCODED = frozenset((
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4",
))
# fmt: on


def treatment_of(quant_type: QuantType) -> Treatment:
    """What loading does with weights of this type.

    "native": kernels read the file's bytes; "repacked": the same bytes in another order, if the
    number of rows is a multiple of 16; "re-encoded": dequantised and stored in another type;
    "unsupported": no weights of this type can be used.
    """
    if quant_type.name in _NATIVE:
        return "native"
    if quant_type.name in _REPACKED:
        return "repacked"
    return "re-encoded" if quant_type.name in _RE_ENCODED else "unsupported"


def is_repacked(quant_type: QuantType, n_rows: int) -> bool:
    """Whether products read a matrix of n_rows rows of this type from a copy in another order."""
    return treatment_of(quant_type) == "repacked" and n_rows % ROWS_SIDE_BY_SIDE == 0


def row_bytes(quant_type: QuantType, n_cols: int) -> int:
    """Bytes of one row of `n_cols` weights: n_cols / block * n_bytes.

    Raises OpsError when the row does not divide into blocks.
    """
    n_blocks, rest = divmod(n_cols, quant_type.block)
    if rest or n_cols < 0:
        raise OpsError(
            f"a row of {n_cols} weights does not divide into {quant_type.name} blocks:"
            f" found {n_cols}, expected a multiple of {quant_type.block}"
        )
    return n_blocks * quant_type.n_bytes
