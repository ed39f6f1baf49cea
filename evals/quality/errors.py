"""The error of this room."""

from ...system.errors import KvarnError


class EvalError(KvarnError):
    """An evaluation cannot be run with these tasks, lengths, methods or folder of contexts."""
