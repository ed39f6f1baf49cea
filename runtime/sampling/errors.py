"""Errors of sampling."""

from ...system.errors import KvarnError


class SamplingError(KvarnError):
    """A sampling option is out of its range, or logits cannot be sampled from."""


class NotFinite(SamplingError):
    """The highest logit is NaN or infinite."""
