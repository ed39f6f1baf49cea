"""What can be wrong with an evaluation that was asked for."""

from ...system.errors import KvarnError


class EvalError(KvarnError):
    """Tasks, lengths or the folder of contexts are not as an evaluation needs them."""
