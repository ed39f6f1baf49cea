"""The error of this room."""

from ..system.errors import KvarnError


class OpsError(KvarnError):
    """Arguments of an operation do not fit together: shapes, types, lengths."""
