"""Matrix products y = x W^T for every weight type, read from GGUF's bytes.

`linear` picks a kernel: `decode` (few tokens), `prefill` (many) or `floats` (unquantised types).
`formats` says how a type is read, `activations` quantises the inputs, `lookup` reads single rows.
"""

from .activations import Activations
from .linear import linear
from .lookup import get_rows
from .weight import Weight

__all__ = ["Activations", "Weight", "get_rows", "linear"]
