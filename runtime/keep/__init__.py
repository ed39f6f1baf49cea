"""Which tokens stay in the store: the second of the four axes.

`registry` lists the methods; what one of them opens is the KV cache of a context (`cache`).
"""

from .base import Keep, KeepError
from .cache import KVCache, closed_on_error
from .evicting import Evicting
from .registry import KEEPS, HashEvict, KeepAll, Streaming
from .slots import Ring, SlotAttention, SlotCache, Slots

__all__ = [
    "KEEPS",
    "Evicting",
    "HashEvict",
    "KVCache",
    "Keep",
    "KeepAll",
    "KeepError",
    "Ring",
    "SlotAttention",
    "SlotCache",
    "Slots",
    "Streaming",
    "closed_on_error",
]
