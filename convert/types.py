"""The types that `--type` takes, and which tensor gets which."""

from __future__ import annotations

from gguf import LlamaFileType

from ..ops.types import QUANT_TYPES

FILE_TYPES: dict[str, LlamaFileType] = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
"""`--type` → `general.file_type`."""


def tensor_type(file_type: str, name: str, shape: tuple[int, ...]) -> str:
    """Name in `QUANT_TYPES` of one tensor's type in a file of `file_type`.

    Vectors, norms and what is no weight stay F32; rows that blocks do not divide become F16. These
    are the rules of llama.cpp's converter.
    """
    if len(shape) == 1 or name.endswith("_norm.weight") or not name.endswith(".weight"):
        return "F32"
    wanted = QUANT_TYPES[file_type.upper()]
    return wanted.name if shape[-1] % wanted.block == 0 else "F16"
