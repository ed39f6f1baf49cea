"""Flags, written by anybody, that stop a pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from ....jit.launch.launcher import Stopped, stopping_at

_TO_THE_END = nullcontext()


def stopping(flags: Sequence[int], halfway: bool) -> AbstractContextManager[None]:
    """Stops the block by int64 at addresses (0: none) that are not 0, with `Stopped`.

    All are read before the block. While it runs, the flag that all passes share stops it between
    two phases of kernels, where it can stop `halfway`: evictions cannot be taken back, and a flag
    of one of several contexts does not stop the others.
    """
    for flag in flags:
        if flag and ctypes.c_int64.from_address(flag).value:
            raise Stopped("stopped before a pass")
    shared = flags[0] if flags.count(flags[0]) == len(flags) else 0
    return stopping_at(shared) if shared and halfway else _TO_THE_END
