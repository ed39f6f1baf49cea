"""Architectures: configuration from GGUF metadata, and one forward pass for all of them.

The room knows no files and no attention methods: it gets mappings of metadata and tensors, and an
attention object. It does not export `Weights` and `Transformer`, which import the kernels.
"""

from .config import ModelConfig as ModelConfig
from .config.architecture import Architecture as Architecture
from .config.architectures import ARCHITECTURES as ARCHITECTURES
from .config.layers import AttentionConfig as AttentionConfig
from .config.layers import LayerConfig as LayerConfig
from .config.layers import RopeConfig as RopeConfig
from .errors import ModelError as ModelError
