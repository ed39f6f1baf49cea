"""The error of templates, for the side that asks."""

from ....system.errors import KvarnError


class TemplateError(KvarnError):
    """A chat template cannot be read or rendered, or refuses the conversation."""
