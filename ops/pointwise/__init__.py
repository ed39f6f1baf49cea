"""Operations on rows and single elements: norms, rope, gated activations, sums, soft caps.

Every result is the same for any number of threads. Importing loads Numba.
"""

from .api import add, geglu, layer_norm, rms_norm, rope, scale, softcap, swiglu, warm

__all__ = [
    "add",
    "geglu",
    "layer_norm",
    "rms_norm",
    "rope",
    "scale",
    "softcap",
    "swiglu",
    "warm",
]
