"""How the tokens of a prompt are read: an axis beside store, keep and attend.

`registry` lists the methods, `base` is what each of them has to provide.
"""

from .base import CHUNK as CHUNK
from .base import Prefill as Prefill
from .base import PrefillError as PrefillError
from .registry import PREFILLS as PREFILLS
from .registry import BlocksPrefill as BlocksPrefill
from .registry import Exact as Exact
from .registry import SparsePrefill as SparsePrefill
from .registry import for_questions as for_questions
from .registry import recorded as recorded
