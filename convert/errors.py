"""What can go wrong on the way to a GGUF file."""

from ..system.errors import KvarnError


class ConvertError(KvarnError):
    """A model that cannot be converted: what was found, what was expected, what to do."""


class HubError(KvarnError):
    """A repository that cannot be pulled, and what to do about it."""


class HubOutOfReach(HubError):
    """No connection, or one that broke off or stalled: another attempt may succeed."""
