"""Models that read a text in both directions and give hidden states, not a next token.

Their layers are those of models that generate (`models.layer`).

weights.py     tensors
encoder.py     the forward pass over several texts at once
"""

from .encoder import Rows as Rows
from .encoder import TextEncoder as TextEncoder
from .weights import TextEncoderWeights as TextEncoderWeights
