"""`kvarn lens`: a page of what recorded selections read of their text."""

from .command import add, run

__all__ = ["add", "run"]
