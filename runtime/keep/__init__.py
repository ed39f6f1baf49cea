"""Which tokens stay in the store: the second of the four axes.

`registry` lists the methods. One that evicts says how many slots each layer has (`evicting`), and
which tokens are in them (`slots`).
"""

from .base import Keep as Keep
from .base import KeepError as KeepError
from .evicting import EvictingKeep as EvictingKeep
from .registry import KEEPS as KEEPS
from .registry import HashEvict as HashEvict
from .registry import KeepAll as KeepAll
from .registry import Streaming as Streaming
from .slots import LayerSlots as LayerSlots
from .slots import Ring as Ring
from .slots import SlotParts as SlotParts
