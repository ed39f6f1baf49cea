"""Shared libraries of this process, and the functions in them. Imports no Numba."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from functools import cache

_opened: dict[str, ctypes.CDLL] = {}


def load(library: str) -> bool:
    """Load a library for good, by its name or its path. Returns whether it is loaded."""
    try:
        _opened[library] = ctypes.CDLL(library)
    except OSError:
        return False
    return True


def address_of(function: str) -> int | None:
    """The address of a function of the process, of libm or of a library that `load` loaded."""
    for library in (*_process(), *_opened.values()):
        with suppress(AttributeError):
            return ctypes.cast(getattr(library, function), ctypes.c_void_p).value
    return None


@cache
def _process() -> tuple[ctypes.CDLL, ...]:
    """What the process has linked. A C program that embeds Python may lack libm; musl and macOS
    have its functions in their C library."""
    if sys.platform == "win32":
        return ()
    opened = [ctypes.CDLL(None)]
    with suppress(OSError):
        opened.append(ctypes.CDLL("libm.so.6"))
    return tuple(opened)
