"""The errors of this room."""

from ..system.errors import KvarnError


class ConvertError(KvarnError):
    """A model cannot be converted."""


class HubError(KvarnError):
    """A repository cannot be pulled."""


class HubUnreachable(HubError):
    """There is no connection, or it broke off or stalled: another attempt may succeed."""
