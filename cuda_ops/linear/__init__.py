"""Matrix products y = x W^T for every weight type, and rows of matrices.

`formats` lays a type out in planes, `planes` takes a file's rows apart, `unpack` puts weights
together in registers, `kernels` holds the two kernels of all types.
"""

from .activations import Activations as Activations
from .linear import get_rows as get_rows
from .linear import linear_many as linear_many
from .weight import Weight as Weight
