"""The table of tensor types: weights and bytes of a block, and what loading does with the type.

Source: ggml's type ids and block sizes, as gguf-py's `GGML_QUANT_SIZES` states them. Imports no
Numba: `kvarn inspect` uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import OpsError

Treatment = Literal["native", "repacked", "re-encoded", "unsupported"]


@dataclass(frozen=True, slots=True)
class QuantType:
    """One way of storing a row of weights: blocks of `block` weights in `n_bytes` bytes each.

    treatment: "native": kernels read the file's bytes; "repacked": the same bytes in another order,
    if the number of rows is a multiple of 16; "re-encoded": loading dequantises the weights and
    stores them in another type; "unsupported": no weights of this type can be used.
    """

    name: str
    ggml_id: int
    block: int
    n_bytes: int
    treatment: Treatment = "unsupported"


QUANT_TYPES: dict[str, QuantType] = {
    entry.name: entry
    for entry in (
        QuantType("F32", 0, 1, 4, "native"),
        QuantType("F16", 1, 1, 2, "native"),
        QuantType("Q4_0", 2, 32, 18, "repacked"),
        QuantType("Q4_1", 3, 32, 20, "repacked"),
        QuantType("Q5_0", 6, 32, 22, "repacked"),
        QuantType("Q5_1", 7, 32, 24, "repacked"),
        QuantType("Q8_0", 8, 32, 34, "native"),
        QuantType("Q8_1", 9, 32, 40),
        QuantType("Q2_K", 10, 256, 84, "native"),
        QuantType("Q3_K", 11, 256, 110, "native"),
        QuantType("Q4_K", 12, 256, 144, "native"),
        QuantType("Q5_K", 13, 256, 176, "native"),
        QuantType("Q6_K", 14, 256, 210, "native"),
        QuantType("Q8_K", 15, 256, 292),
        QuantType("IQ2_XXS", 16, 256, 66, "re-encoded"),
        QuantType("IQ2_XS", 17, 256, 74, "re-encoded"),
        QuantType("IQ3_XXS", 18, 256, 98, "re-encoded"),
        QuantType("IQ1_S", 19, 256, 50, "re-encoded"),
        QuantType("IQ4_NL", 20, 32, 18, "native"),
        QuantType("IQ3_S", 21, 256, 110, "re-encoded"),
        QuantType("IQ2_S", 22, 256, 82, "re-encoded"),
        QuantType("IQ4_XS", 23, 256, 136, "native"),
        QuantType("I8", 24, 1, 1),
        QuantType("I16", 25, 1, 2),
        QuantType("I32", 26, 1, 4),
        QuantType("I64", 27, 1, 8),
        QuantType("F64", 28, 1, 8),
        QuantType("IQ1_M", 29, 256, 56, "re-encoded"),
        QuantType("BF16", 30, 1, 2, "native"),
        QuantType("TQ1_0", 34, 256, 54, "re-encoded"),
        QuantType("TQ2_0", 35, 256, 66, "re-encoded"),
        QuantType("MXFP4", 39, 32, 17, "repacked"),
        QuantType("NVFP4", 40, 64, 36, "re-encoded"),
        QuantType("Q1_0", 41, 128, 18),
    )
}

BY_ID: dict[int, QuantType] = {entry.ggml_id: entry for entry in QUANT_TYPES.values()}

# Ids that ggml has withdrawn, for the error message about an old file.
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

ROWS_SIDE_BY_SIDE = 16


def is_repacked(quant_type: QuantType, n_rows: int) -> bool:
    """Whether products read a matrix of n_rows rows of this type from a copy in another order."""
    return quant_type.treatment == "repacked" and n_rows % ROWS_SIDE_BY_SIDE == 0


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
