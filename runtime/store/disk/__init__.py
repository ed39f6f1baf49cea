"""The KV cache on disk: context packs, their format, and the store that reads and writes them.

`folder.py` draws the files of a pack; `saving/writer.py` says what a commit does, in which order.
"""

from .errors import ModelMismatch as ModelMismatch
from .errors import PackBusy as PackBusy
from .errors import PackDamaged as PackDamaged
from .errors import PackError as PackError
from .factory import Disk as Disk
from .folder import PackFolder as PackFolder
from .store import DiskStore as DiskStore
