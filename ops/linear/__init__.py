"""Matrix products y = x W^T for every weight type, read from GGUF's bytes.

`linear` picks a kernel: `decode` (few tokens), `prefill` (many) or `floats` (unquantised types).
`formats` reads each type, `activations` quantises the inputs.
"""

from .activations import Activations as Activations
from .linear import get_rows as get_rows
from .linear import linear as linear
from .weight import Weight as Weight
