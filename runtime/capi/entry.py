"""Makes the methods of `Library` callable from the C part, and turns errors into its codes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import _cffi_backend  # noqa: F401  without it, cffi would write to stderr that it is missing

from ...jit.kernel_cache import on_compile
from ...jit.launch.launcher import Stopped
from ...system import terminal
from ...system.errors import WrongUsage, message_of, traceback_of
from ...system.spelling import spell
from ...system.text import one_line
from .arguments import Cancelled, InUse, Refused
from .library import Library

ERROR, BUSY, CANCELLED, NOT_RUNNING, BAD_ARGUMENT = -1, -2, -3, -4, -5
"""Results of functions that failed: those of kvarn.h."""

_MOST_ERROR = 2047
"""Bytes of the text that kvarn_error returns."""


class Entry:
    """The way from C to one `Library`."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi, self.lib = ffi, lib
        self.library = Library(ffi, lib)

    def bind(self, names: list[str]) -> None:
        """Make the functions callable from C."""
        for name in names:
            method = name.removeprefix("py_")
            function = self.begin if method == "begin" else getattr(self.library, method)
            self.ffi.def_extern(name=name, error=ERROR)(self._guarded(function))

    def begin(self, is_own: int) -> int:
        """is_own: whether the library started this Python, so that nobody expects its output."""
        if is_own:
            sys.stdout = sys.stderr = _Lines(self.library.log)
        terminal.set_listener(self.library.log)
        spell(str)
        on_compile(_Compiling(self.library.log))
        return 1

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                return function(*arguments)
            except BaseException as error:  # also panics of libraries in Rust
                return self._failed(error)

        return call

    def _failed(self, error: BaseException) -> int:
        """The code of an error, whose text the thread then finds in kvarn_error."""
        if isinstance(error, Refused):
            return int(error.args[0])
        if where := traceback_of(error):
            self.library.log(where)
        text = " ".join(message_of(error).split())
        code = ERROR
        if isinstance(error, WrongUsage):
            code = BAD_ARGUMENT
        elif isinstance(error, InUse):
            code = BUSY
        elif isinstance(error, Stopped | Cancelled):
            code, text = CANCELLED, f"cancelled: {text}"
            if self.lib.is_ending():
                code, text = NOT_RUNNING, "kvarn has been stopped, or the process is ending"
        line = one_line(text).encode("utf-8", "backslashreplace")[:_MOST_ERROR]
        self.lib.set_error(line.decode("utf-8", "ignore").encode())
        return code


class _Lines(io.TextIOBase):
    """A stream whose lines go to the program's listener."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def write(self, text: str) -> int:
        self._log(text)
        return len(text)


class _Compiling:
    """Reports that kernels are being compiled, and after each one how many there were."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log, self._n, self._seconds = log, 0, 0.0

    def __call__(self, kernel: str, seconds: float | None) -> None:
        if seconds is not None:
            self._n, self._seconds = self._n + 1, self._seconds + seconds
            self._log(f"compiled {self._n} kernels in {self._seconds:.0f} s so far")
        elif not self._n:
            self._log("compiling kernels, on first use; `kvarn build` does it ahead")
