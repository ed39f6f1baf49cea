"""The error of this room."""

from ..system.errors import KvarnError


class JitError(KvarnError):
    """A kernel cannot be compiled, cached or launched as asked on this machine."""
