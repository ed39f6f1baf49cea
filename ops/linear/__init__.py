"""Matrices times activations, y = x W^T, for every weight type: straight from GGUF bytes.

`formats`, `kformats` say how a type is read, `columns` how 16 rows at once; the kernels are `rows`
(one token), `batch` (up to four), `interleaved` (both, for types that are laid out anew), `matmul`
with `panels` and `tiles` (many) and `floats` (unquantised types); `linear` picks one; `activations`
and `grouped` prepare the inputs; `lookup` reads single rows.
"""

from .activations import Activations
from .linear import linear, warm
from .lookup import get_rows
from .weight import Weight

__all__ = ["Activations", "Weight", "get_rows", "linear", "warm"]
