"""Errors of the kernels."""

from ..system.errors import KvarnError


class OpsError(KvarnError):
    """Arguments of a kernel do not fit together: shapes, types, lengths."""
