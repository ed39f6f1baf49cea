"""What commands tell the user on stderr while they work."""

from __future__ import annotations

from ...system.terminal import say

notice = say
"""Tell the user one thing, on stderr."""

KERNELS = "kernels (first use on this machine; `make build` does it ahead)"
ENCODERS = "encoders (first use on this machine)"


class CompileNotice:
    """For `on_compile`: says once what is being compiled: the first run takes longer."""

    def __init__(self, what: str) -> None:
        self._what, self._said = what, False

    def __call__(self, kernel: str) -> None:
        if not self._said:
            self._said = True
            notice(f"compiling {self._what} …")
