"""Stores hold K and V, in memory or on disk, in one of the KV types: the first of four axes.

A store gives kernels the base addresses of segments; kernels do not know what is behind them.
"""

from .base import Column as Column
from .base import KVStore as KVStore
from .base import Saved as Saved
from .base import SlotPlan as SlotPlan
from .base import StoreError as StoreError
from .disk import DiskStore as DiskStore
from .disk import ModelMismatch as ModelMismatch
from .disk import PackBusy as PackBusy
from .disk import PackError as PackError
from .facts import PrefillFacts as PrefillFacts
from .facts import ProbeFacts as ProbeFacts
from .facts import ProbeSums as ProbeSums
from .method import Store as Store
from .ram.slots import SlotStore as SlotStore
from .ram.store import RamStore as RamStore
from .registry import STORES as STORES
from .registry import Disk as Disk
from .registry import Ram as Ram
