"""Which kept tokens a query reads: the third of the four axes.

`registry` lists the methods, `base` is what each of them has to provide.
"""

from .base import Attend, BoundAttend, LayerView
from .errors import AttendError
from .registry import ATTENDS, Auto, Full, Hash, MagicPig, TopK
from .sparse import Sparse

__all__ = [
    "ATTENDS",
    "Attend",
    "AttendError",
    "Auto",
    "BoundAttend",
    "Full",
    "Hash",
    "LayerView",
    "MagicPig",
    "Sparse",
    "TopK",
]
