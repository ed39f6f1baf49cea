"""Chooses the next token: filters over candidates, and the chain that joins them.

Every step is a pure function that can be used alone; `Sampler` holds the options, `.start()`
gives the state of one generation. What needs NumPy is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .options import Sampler, SamplingError

if TYPE_CHECKING:
    from .candidates import Candidates, best_token, log_softmax, softmax
    from .filters import min_p, temperature, top_k, top_p, typical_p
    from .penalties import History, add_bias, penalise
    from .state import SamplerState, TokenLogprobs

_HOMES = {
    "Candidates": "candidates",
    "History": "penalties",
    "SamplerState": "state",
    "TokenLogprobs": "state",
    "add_bias": "penalties",
    "best_token": "candidates",
    "log_softmax": "candidates",
    "min_p": "filters",
    "penalise": "penalties",
    "softmax": "candidates",
    "temperature": "filters",
    "top_k": "filters",
    "top_p": "filters",
    "typical_p": "filters",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
