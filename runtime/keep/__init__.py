"""Which tokens stay in the store: the second of the three axes."""

from .base import Evicting, Keep, KeepError, parse_budget
from .everything import KeepAll
from .hashevict import HashEvict
from .slots import Ring, SlotAttention, Slots, open_slots
from .streaming import Streaming

KEEPS: dict[str, type[Keep]] = {keep.name: keep for keep in (KeepAll, Streaming, HashEvict)}

__all__ = [
    "KEEPS",
    "Evicting",
    "HashEvict",
    "Keep",
    "KeepAll",
    "KeepError",
    "Ring",
    "SlotAttention",
    "Slots",
    "Streaming",
    "open_slots",
    "parse_budget",
]
