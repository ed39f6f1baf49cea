"""Matrix products y = x W^T for every weight type, and rows of matrices.

`formats` lays a type out in planes, `planes` takes a file's rows apart, `unpack` puts weights
together in registers, `kernels` holds the two kernels of all types.
"""

from .activations import Activations
from .linear import linear, linear_many
from .lookup import get_rows
from .weight import Weight

__all__ = ["Activations", "Weight", "get_rows", "linear", "linear_many"]
