"""The configuration of a model: the table of architectures, and what a file's metadata say.

`from_metadata` (`model.py`) is the way in. `architectures.py` is the table; each `*_keys.py` reads
the keys of one part. Knows no tensors and no devices, and imports no Numba.
"""

from .model import ModelConfig as ModelConfig
from .model import refuse_adapter as refuse_adapter
