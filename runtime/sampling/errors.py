"""Errors of sampling."""

from ...system.errors import KvarnError, WrongUsage


class SamplingError(KvarnError):
    """A sampling option cannot be used, or logits cannot be sampled from."""


class BadOption(SamplingError, WrongUsage):
    """A sampling option has a value that it cannot have, or none that has an effect."""


class NotFinite(SamplingError):
    """The highest logit is NaN or infinite."""
