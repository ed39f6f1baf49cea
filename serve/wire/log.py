"""The server's log, on stderr: a line per request and notices, in words or as JSON.

A line holds method, path, status, seconds and numbers of tokens: no text of a request, no key.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from ...system.terminal import say_lines
from ...system.text import one_line

PROBES = ("/health", "/metrics", "/beginnings")
"""What programs ask again and again: whether the server is ready, its counters, and what it has
read (`kvarn route`)."""
_PATH = 120
"""Characters of a path that are worth a line."""


class Log:
    def __init__(self, form: Literal["text", "json"]) -> None:
        self._is_json = form == "json"

    def request(
        self, method: str, path: str, status: int, seconds: float, numbers: dict[str, int]
    ) -> None:
        """One request that has ended, unless it was a probe that found all well: programs that
        watch the server send many. `path` has no query: keys may stand there."""
        if method in ("GET", "HEAD") and status == 200 and path in PROBES:
            return
        path = one_line(path, _PATH)
        fields = {"status": status, "seconds": round(seconds, 4), **numbers}
        counts = "".join(f" {name}={number}" for name, number in numbers.items())
        text = f"{one_line(method, 10)} {path} {status} {seconds:.3f} s{counts}"
        self._write("request", text, {"method": method, "path": path, **fields})

    def notice(self, message: str) -> None:
        """What the user of this machine should know."""
        self._write("notice", message, {"message": message})

    def _write(self, kind: str, text: str, fields: dict[str, Any]) -> None:
        now = time.time()
        if self._is_json:
            line = {"time": round(now, 3), "event": kind, **fields}
            say_lines(msgspec.json.encode(line).decode())
        else:
            say_lines(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))} {text}")
