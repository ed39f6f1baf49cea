"""Reads GGUF files: metadata decoded when asked for, tensors as views of the mapped file.

A file that is damaged or made to harm gives a GGUFError that names what is wrong, nothing else.
Does not import Numba.
"""

from .errors import GGUFError
from .file import GGUFFile, open_gguf
from .metadata import Metadata
from .tensors import Tensor

__all__ = ["GGUFError", "GGUFFile", "Metadata", "Tensor", "open_gguf"]
