"""Where K and V live, and in what type: the first of the three axes.

A store hands kernels base addresses of segments; they never ask what is behind them.
"""

from .base import Column, KVStore, Saved, StoreError
from .disk import Disk, DiskStore, PackError
from .ram import Ram, RamStore
from .slots import SlotStore

__all__ = [
    "Column",
    "Disk",
    "DiskStore",
    "KVStore",
    "PackError",
    "Ram",
    "RamStore",
    "Saved",
    "SlotStore",
    "StoreError",
]
