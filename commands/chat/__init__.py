"""`kvarn chat`: a conversation at a terminal or through a pipe."""

from .command import add, run

__all__ = ["add", "run"]
