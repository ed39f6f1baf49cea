"""A context: the tokens that a model has read, their keys and values, and what comes next."""

from ..methods import Progress as Progress
from .context import Context as Context
from .mark import Mark as Mark
from .reading.prompt import ContextError as ContextError
