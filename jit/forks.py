"""A forked process has none of the threads of its parent, and would wait for them for ever.

So whatever starts threads, or hands work to some, calls `check` before.
"""

from __future__ import annotations

import os

from .errors import JitError

forked = False
"""Whether this process was forked from one that had come to `check`."""
_threaded = False


def check() -> None:
    """Note that there are going to be threads; `JitError` where they stayed with the parent."""
    global _threaded  # noqa: PLW0603
    if forked:
        raise JitError(
            "running kernels: this process was forked from one that had run some, whose threads it "
            "lacks; start it afresh (multiprocessing: the method `spawn`), or load the model after "
            "the fork only"
        )
    _threaded = True


def _after_fork() -> None:
    global forked  # noqa: PLW0603
    forked = _threaded


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
