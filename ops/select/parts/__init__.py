"""Choices among the tokens of several processes, each of which has the keys of its own.

Each process names the k best of its tokens for each query head, as entries (`best`). The best of
all are those whose keys are up to a limit: a key is an entry with the hash of its position in the
position's place, so it orders tokens as choices do. So the tokens are those that one process with
all keys would choose.
"""

from .api import NO_LIMIT as NO_LIMIT
from .api import LargestScratch as LargestScratch
from .api import LimitScratch as LimitScratch
from .api import ListScratch as ListScratch
from .api import NearestScratch as NearestScratch
from .api import SurroundScratch as SurroundScratch
from .api import key_limits as key_limits
from .api import largest_entries as largest_entries
from .api import list_entries as list_entries
from .api import nearest_entries as nearest_entries
from .api import surround as surround
