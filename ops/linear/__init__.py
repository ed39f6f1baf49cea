"""Matrices times activations, y = x W^T, for every weight type: straight from GGUF bytes.

`formats` say how a type is read; the kernels are those of `decode` (few tokens), `prefill` (many)
and `floats` (unquantised types), of which `linear` picks one; `activations` and `grouped` prepare
the inputs; `lookup` reads single rows.
"""

from .activations import Activations
from .linear import linear, warm
from .lookup import get_rows
from .weight import Weight

__all__ = ["Activations", "Weight", "get_rows", "linear", "warm"]
