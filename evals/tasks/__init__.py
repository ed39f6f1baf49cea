"""Long-context tasks: seeded contexts of any length, and questions that are separate from them."""

from collections.abc import Callable

from .chains import chains, homes, two_hop
from .facts import kv, multiquery, multivalue, needle, records
from .filler import Filler, Plain, Prose
from .ruler import RULER
from .sample import Part, Question, Sample, Task
from .words import copy, frequent

SCATTERED: dict[str, Callable[..., Sample]] = {
    "needle": needle,
    "multivalue": multivalue,
    "multiquery": multiquery,
    "chains": chains,
    "homes": homes,
    "two-hop": two_hop,
}
"""Tasks of facts in filler; their generators also take least_filler, see `needle`."""
TASKS: dict[str, Task] = {
    "needle": needle,
    "kv": kv,
    "records": records,
    **SCATTERED,
    "frequent": frequent,
    "copy": copy,
}
"""The tasks that kvarn-mini is trained on."""
ALL_TASKS: dict[str, Task] = {**TASKS, **RULER}
"""`kvarn eval --task ?` shows the first line of each generator's docstring."""

__all__ = [
    "ALL_TASKS",
    "RULER",
    "SCATTERED",
    "TASKS",
    "Filler",
    "Part",
    "Plain",
    "Prose",
    "Question",
    "Sample",
    "Task",
]
