"""Errors of the GPU operations."""

from ..system.errors import KvarnError


class CudaOpsError(KvarnError):
    """An operation was given something that it cannot take."""
