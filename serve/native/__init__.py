"""kvarn's own paths, and those of llama.cpp's server that other programs know.

state.py      /health, /props
"""

from ..operations import Operation
from .state import health, props

OPERATIONS = (
    Operation("GET", "/health", health, summary="Whether the model is there"),
    Operation("GET", "/props", props, summary="The model and how it is served"),
)
