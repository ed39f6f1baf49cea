"""Attention that reads only chosen tokens: what all such methods share beside their index.

Sinks and window are always read. Of the tokens between them, each query head chooses its k best,
and the heads that share a KV head attend to all that any of them chose. Prefill, layers with a
sliding window, and contexts of which nearly all would be read use `full`, bit for bit.
"""

from .attention import SparseAttention
from .centred import CentredIndex
from .index import SEED, Chosen, SlotIndex, TokenIndex
from .method import Budgeted, OverSlots, Sparse

__all__ = [
    "SEED",
    "Budgeted",
    "CentredIndex",
    "Chosen",
    "OverSlots",
    "SlotIndex",
    "Sparse",
    "SparseAttention",
    "TokenIndex",
]
