"""The library of what was read: a tree of packs from which the server takes contexts.

library.py   leases: contexts that begin with what was read, and what becomes of them
tree.py      the longest common beginning of a prompt and what was read
entry.py     one pack of it
room.py      its bytes on disk, and what goes first
"""

from .library import Lease as Lease
from .library import Library as Library
