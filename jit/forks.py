"""Refuses to run kernels after a fork: the child lacks its parent's threads and would hang.

Code that starts threads, or gives them work, calls `check` first.
"""

from __future__ import annotations

import os

from .errors import JitError

forked = False
"""Whether this process is a fork of one that had called `check`."""
_has_threads = False


def check() -> None:
    """Record that this process will have threads. Raises JitError if it is a fork of one that had
    some."""
    global _has_threads  # noqa: PLW0603
    if forked:
        raise JitError(
            "running kernels: this process was forked from one that had run some, and lacks its "
            "threads; start it without a fork (multiprocessing: the method `spawn`), or load the "
            "model only after the fork"
        )
    _has_threads = True


def _after_fork() -> None:
    global forked  # noqa: PLW0603
    forked = _has_threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
