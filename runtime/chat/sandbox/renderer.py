"""One template, and the process that renders it."""

from __future__ import annotations

import marshal
import threading
from datetime import datetime
from typing import Any

from ....system.text import one_line
from .errors import TemplateError
from .limits import COMPILE, DONE, FAILED, MARSHAL_VERSION, MEMORY, REFUSED, RENDER, SYNTAX, Limits
from .process import Worker

# Larger requests and texts fragment a process's memory: the next request gets a new process.
_LARGE = 4 << 20


class Renderer:
    """One template, compiled and rendered in a process of its own; for any number of threads.

    The process starts when it is first needed, or at `start`, and is replaced where it ended.
    """

    def __init__(self, source: str, limits: Limits | None = None) -> None:
        self._source = source
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._compiled = False

    def start(self) -> None:
        """Starts the process without waiting for it."""
        with self._lock:
            self._start_worker()

    def check(self) -> None:
        """Raises `TemplateError` unless the template can be compiled."""
        with self._lock:
            self._ready()

    def render(self, variables: dict[str, Any], now: datetime) -> str:
        """The text for `variables`, plain JSON values; `now` is the time of `strftime_now`."""
        moment = (now.year, now.month, now.day, now.hour, now.minute, now.second, now.microsecond)
        offset = now.utcoffset()
        seconds = None if offset is None else offset.total_seconds()
        request = {"variables": variables, "now": (moment, seconds, now.tzname())}
        with self._lock:
            worker = self._ready()
            return self._ask(worker, RENDER, request)

    def _start_worker(self) -> Worker:
        if self._worker is None or not self._worker.is_alive:
            self._worker, self._compiled = Worker(self._limits), False
        return self._worker

    def _ready(self) -> Worker:
        worker = self._start_worker()
        if not self._compiled:
            limits = tuple(self._limits)
            self._ask(worker, COMPILE, {"source": self._source, "limits": limits})
            self._compiled = True
        return worker

    def _ask(self, worker: Worker, kind: bytes, request: dict[str, Any]) -> str:
        """The answer; `TemplateError` for a failure. After most failures, the process is ended."""
        data = marshal.dumps(request, MARSHAL_VERSION)
        keep = False
        try:
            status, text = worker.ask(kind, data)
            size = len(data) + len(text)
            keep = status in (REFUSED, FAILED) or (status == DONE and size < _LARGE)
        finally:
            if not keep:
                worker.end()
        if status == DONE:
            return text
        line = one_line(" ".join(text.split()), 300)
        if status == REFUSED:
            raise TemplateError(f"chat template: refuses the conversation: {line}")
        if status == SYNTAX:
            raise TemplateError(f"chat template: {line}; expected a Jinja template")
        if status == MEMORY:
            line = f"took more than {self._limits.memory // 10**6} MB of memory"
        doing = "cannot be compiled" if kind == COMPILE else "rendering failed"
        raise TemplateError(f"chat template: {doing}: {line}")
