"""Matrices times activations, y = x W^T, for every weight type: straight from GGUF bytes.

`formats`, `kformats` say how a type is read; `rows` (one token), `panels` and `tiles` (many tokens)
and `floats` (unquantised types) are the kernels; `linear` picks one; `activations`
prepares the inputs; `lookup` reads single rows.
"""

from .activations import Activations
from .linear import linear, warm
from .lookup import get_rows
from .weight import Weight

__all__ = ["Activations", "Weight", "get_rows", "linear", "warm"]
