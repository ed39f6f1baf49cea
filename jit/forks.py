"""A forked process lacks its parent's threads and would wait for them for ever.

So whatever starts threads, or gives them work, calls `check` first.
"""

from __future__ import annotations

import os

from .errors import JitError

forked = False
"""Whether this process was forked from one that had called `check`."""
_threaded = False


def check() -> None:
    """Note that this process is about to have threads. Raises JitError if its parent had some."""
    global _threaded  # noqa: PLW0603
    if forked:
        raise JitError(
            "running kernels: this process was forked from one that had run some, and lacks its "
            "threads; start it without a fork (multiprocessing: the method `spawn`), or load the "
            "model only after the fork"
        )
    _threaded = True


def _after_fork() -> None:
    global forked  # noqa: PLW0603
    forked = _threaded


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
