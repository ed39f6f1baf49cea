"""Long-context tasks: seeded contexts of any length, and questions that stand apart from them."""

from .chains import chains, homes, two_hop
from .facts import kv, multiquery, multivalue, needle
from .filler import Filler, Plain, Prose
from .ruler import RULER
from .sample import Part, Question, Sample, Task
from .words import copy, frequent

TASKS: dict[str, Task] = {
    "needle": needle,
    "kv": kv,
    "multivalue": multivalue,
    "multiquery": multiquery,
    "chains": chains,
    "homes": homes,
    "two-hop": two_hop,
    "frequent": frequent,
    "copy": copy,
}
"""Those that kvarn-mini learns from."""
ALL_TASKS: dict[str, Task] = {**TASKS, **RULER}

__all__ = [
    "ALL_TASKS",
    "RULER",
    "TASKS",
    "Filler",
    "Part",
    "Plain",
    "Prose",
    "Question",
    "Sample",
    "Task",
]
