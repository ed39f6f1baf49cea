"""What a model and a context take: memory, disk and time, from the header of a file alone.

Weights are not read, and nothing of a context's size is allocated.
"""

from .estimate import Estimate as Estimate
from .estimate import advice as advice
from .estimate import estimate as estimate
from .estimate import predicted as predicted
from .estimate import with_beside as with_beside
from .speed import Speeds as Speeds
from .speed import speeds as speeds
