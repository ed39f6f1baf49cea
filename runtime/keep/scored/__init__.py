"""Keep methods that evict many tokens at once, after a prompt, by scores.

`base` is their interface, and the slots of a layer that they evict from; `methods` and `nacl` are
the methods; `queries` are the last queries, from which scores are computed.
"""

from .base import ScoredKeep as ScoredKeep
from .base import ScoredSlots as ScoredSlots
from .methods import H2O as H2O
from .methods import TOVA as TOVA
from .methods import KeepRandom as KeepRandom
from .methods import L2Norm as L2Norm
from .methods import SnapKV as SnapKV
from .nacl import NaCl as NaCl
