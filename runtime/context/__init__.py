"""A context: the tokens that a model has read, their keys and values, and what comes next."""

from .context import Context
from .prompt import ContextError, Progress

__all__ = ["Context", "ContextError", "Progress"]
