"""The KV cache on disk: context packs, their format, and the store that reads and writes them.

`folder.py` draws the files of a pack; `writer.py` says what a commit does, in which order.
"""

from .errors import PackDamaged, PackError
from .factory import Disk
from .folder import PackFolder
from .store import DiskStore

__all__ = ["Disk", "DiskStore", "PackDamaged", "PackError", "PackFolder"]
