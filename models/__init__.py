"""Architectures: configuration from GGUF metadata, and one forward pass for all of them.

The room knows no files and no attention methods: it gets mappings of metadata and tensors, and an
attention object. It does not export `Weights` and `Transformer`, which import the kernels.
"""

from .architectures import ARCHITECTURES as ARCHITECTURES
from .architectures import Architecture as Architecture
from .config import ModelConfig as ModelConfig
from .errors import ModelError as ModelError
from .layer_config import AttentionConfig as AttentionConfig
from .layer_config import LayerConfig as LayerConfig
from .layer_config import RopeConfig as RopeConfig
