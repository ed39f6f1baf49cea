"""How the tokens of a prompt are read: an axis beside store, keep and attend.

`registry` lists the methods, `base` is what each of them has to provide.
"""

from .base import CHUNK, Prefill, PrefillError
from .questions import for_questions
from .registry import PREFILLS, Exact, SparsePrefill, recorded

__all__ = [
    "CHUNK",
    "PREFILLS",
    "Exact",
    "Prefill",
    "PrefillError",
    "SparsePrefill",
    "for_questions",
    "recorded",
]
