"""Keep methods that evict many tokens at once, after a prompt, by scores.

`base` is their interface, each method a file; `attention` and `cache` hold a prompt whole and then
evict; `queries` are the last queries, from which scores are computed.
"""

from .base import Scored
from .h2o import H2O
from .l2norm import L2Norm
from .nacl import NaCl
from .random import KeepRandom
from .snapkv import SnapKV
from .tova import TOVA

__all__ = ["H2O", "TOVA", "KeepRandom", "L2Norm", "NaCl", "Scored", "SnapKV"]
