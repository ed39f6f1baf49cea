"""Choosing tokens on a GPU: the lists that `ops.select` makes, by signatures and by sketches."""

from .choices import Select

__all__ = ["Select"]
