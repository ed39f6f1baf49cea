"""Attention that reads only chosen tokens: the part that is the same for every index.

Sinks and window are always read. Of the tokens between them, each query head chooses its k best,
and the heads that share a KV head attend to all that any of them chose. Prefill, layers with a
sliding window, and contexts of which nearly all would be read use `full`, bit for bit.
"""

from .attention import SparseAttention as SparseAttention
from .centred import CentredIndex as CentredIndex
from .index import SEED as SEED
from .index import Chosen as Chosen
from .index import SlotIndex as SlotIndex
from .index import TokenIndex as TokenIndex
from .method import BudgetedSparse as BudgetedSparse
from .method import SlotSparse as SlotSparse
from .method import Sparse as Sparse
