"""The error of this room."""

from ...system.errors import KvarnError


class TokenizerError(KvarnError):
    """A file's vocabulary cannot be used, or ids or options do not fit it."""
