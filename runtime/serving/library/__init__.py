"""The library of what was read: a tree of packs from which the server takes contexts.

    library.py   what was read, and what becomes of contexts that are released
    opening.py   leases: contexts that begin with what was read
    policy.py    how the rest of a prompt is read, after what was read before
    tree.py      the longest common beginning of a prompt and what was read
    entry.py     one pack of it
    catalogue.py all of them
    budget.py    their bytes on disk, and what goes first
    idle.py      contexts in memory, where nothing can be written
    answers.py   answers as they were generated, by the messages that they became
    journal.py   the file of answers

A `Library` is used on the engine thread; its `answers` by any.
"""

from .library import Library as Library
from .opening import Lease as Lease
from .policy import LONG as LONG
