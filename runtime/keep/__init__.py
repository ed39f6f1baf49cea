"""Which tokens stay in the store: the second of the three axes."""

from .base import Keep
from .everything import KeepAll

KEEPS: dict[str, type[Keep]] = {"all": KeepAll}

__all__ = ["KEEPS", "Keep", "KeepAll"]
