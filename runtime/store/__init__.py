"""Where K and V live, and in what type: the first of the three axes.

A store hands kernels base addresses of segments; they never ask what is behind them.
"""

from .base import Column, KVStore, StoreError
from .ram import Ram, RamStore
from .slots import SlotStore

__all__ = ["Column", "KVStore", "Ram", "RamStore", "SlotStore", "StoreError"]
