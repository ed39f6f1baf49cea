"""Chooses the next token: filters over candidates, and the chain that joins them.

`Sampler` holds the options, and its `start()` gives the state of one generation. Each step is a
pure function of `candidates`, `filters` or `penalties`. This module does not import NumPy.
"""

from .errors import NotFinite, SamplingError
from .sampler import Sampler

__all__ = ["NotFinite", "Sampler", "SamplingError"]
