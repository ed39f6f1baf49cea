"""A context: the tokens that a model has read, their keys and values, and what comes next."""

from ..methods import Progress
from .context import Context
from .mark import Mark
from .prompt import ContextError

__all__ = ["Context", "ContextError", "Mark", "Progress"]
