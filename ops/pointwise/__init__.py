"""Operations on rows and single elements: norms, rope, gated activations, sums, soft caps.

Every result is the same for any number of threads.
"""

from .api import (
    add,
    add_layer_norm,
    add_rms_norm,
    add_row,
    geglu,
    layer_norm,
    rms_norm,
    rope,
    scale,
    scale_rows,
    softcap,
    swiglu,
)

__all__ = [
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "add_row",
    "geglu",
    "layer_norm",
    "rms_norm",
    "rope",
    "scale",
    "scale_rows",
    "softcap",
    "swiglu",
]
