"""The error of this room."""

from ..system.errors import KvarnError


class JitError(KvarnError):
    """This machine cannot compile, cache or launch a kernel in this way."""
