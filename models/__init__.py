"""Architectures: configuration from GGUF metadata and one forward pass with described differences.

Knows nothing of files or methods: it is given mappings of metadata and tensors, and an attention
object. `Weights` and `Transformer` stay in their modules, for they import the kernels.
"""

from .architectures import ARCHITECTURES, Architecture
from .config import LayerConfig, ModelConfig, RopeConfig
from .errors import ModelError

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "LayerConfig",
    "ModelConfig",
    "ModelError",
    "RopeConfig",
]
