"""Where K and V live, and in what type: the first of the four axes.

A store gives kernels the base addresses of segments; kernels do not know what is behind them.
"""

from .base import Column, KVStore, Saved, SlotPlan, StoreError
from .disk import DiskStore, PackError
from .facts import PrefillFacts, ProbeFacts, ProbeSums
from .method import Store
from .ram_store import RamStore
from .registry import STORES, Disk, Ram
from .slots import SlotStore

__all__ = [
    "STORES",
    "Column",
    "Disk",
    "DiskStore",
    "KVStore",
    "PackError",
    "PrefillFacts",
    "ProbeFacts",
    "ProbeSums",
    "Ram",
    "RamStore",
    "Saved",
    "SlotPlan",
    "SlotStore",
    "Store",
    "StoreError",
]
