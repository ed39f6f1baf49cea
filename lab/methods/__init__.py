"""Methods to compare kvarn's with. Importing this registers them, as any method of a user's does.

`python -m lab` is `kvarn` with these: `python -m lab run -f book.txt --method quest`.
"""

from .ann import Hnsw, Ivf
from .cover import Covered
from .quest import Quest
from .replay import Replay
from .rising import Rising
from .sampled import Sampled

__all__ = ["Covered", "Hnsw", "Ivf", "Quest", "Replay", "Rising", "Sampled"]
