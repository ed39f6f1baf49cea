"""What commands tell the user on stderr while they work."""

from __future__ import annotations

from ...system.terminal import say

notice = say
"""Tell the user one thing, on stderr."""


class EncoderNotice:
    """For `on_compile`: says once that encoders are being compiled: the first run takes longer."""

    said = False

    def __call__(self, kernel: str, seconds: float | None) -> None:
        if not self.said:
            self.said = True
            notice("compiling encoders (first use on this machine) …")
