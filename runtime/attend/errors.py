"""Errors of attend methods."""

from ...system.errors import KvarnError


class AttendError(KvarnError):
    """An attend method cannot work with the options or the files it was given."""
