"""Reads GGUF files: metadata is decoded on first use, tensors are views of the mapped file.

A damaged or malicious file raises a GGUFError that names the fault. Does not import Numba.
"""

from .file import GGUFFile as GGUFFile
from .file import open_gguf as open_gguf
from .metadata import Metadata as Metadata
from .source import GGUFError as GGUFError
from .tensors import Tensor as Tensor
