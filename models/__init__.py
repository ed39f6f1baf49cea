"""Architectures: configuration from GGUF metadata, and one forward pass for all of them.

The room knows nothing of files or attention methods: it gets mappings of metadata and tensors, and
an attention object. `Weights` and `Transformer` are not exported here, as they import the kernels.
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
