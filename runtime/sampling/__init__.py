"""Chooses the next token: filters over candidates, and the chain that joins them.

Every step is a pure function that can be used alone; `Sampler` holds the options, `.start()`
gives the state of one generation. NumPy only.
"""

from .candidates import Candidates, SamplingError, best_token, log_softmax, softmax
from .filters import min_p, temperature, top_k, top_p, typical_p
from .penalties import History, add_bias, penalise
from .sampler import Sampler, SamplerState, TokenLogprobs

__all__ = [
    "Candidates",
    "History",
    "Sampler",
    "SamplerState",
    "SamplingError",
    "TokenLogprobs",
    "add_bias",
    "best_token",
    "log_softmax",
    "min_p",
    "penalise",
    "softmax",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
]
