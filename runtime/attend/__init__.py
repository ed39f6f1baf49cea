"""Which kept tokens a query reads: the third of the three axes."""

from .base import Attend, AttendError, LayerView
from .full import Full
from .hash import Hash
from .replay import Replay
from .sparse import Sparse
from .topk import TopK

ATTENDS: dict[str, type[Attend]] = {"full": Full, "topk": TopK, "hash": Hash}

__all__ = [
    "ATTENDS",
    "Attend",
    "AttendError",
    "Full",
    "Hash",
    "LayerView",
    "Replay",
    "Sparse",
    "TopK",
]
