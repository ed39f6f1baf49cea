"""Reads GGUF files: metadata is decoded on first use, tensors are views of the mapped file.

A damaged or malicious file raises a GGUFError that names what is wrong. Does not import Numba.
"""

from .errors import GGUFError
from .file import GGUFFile, open_gguf
from .metadata import Metadata
from .tensors import Tensor

__all__ = ["GGUFError", "GGUFFile", "Metadata", "Tensor", "open_gguf"]
