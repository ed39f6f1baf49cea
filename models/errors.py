"""Errors of the models room."""

from ..system.errors import KvarnError


class ModelError(KvarnError):
    """A model's metadata or tensors do not describe a model that kvarn can run."""
