"""The process that compiles and renders one template; messages come and go by descriptor 0.

It starts with almost no environment variables. Before it reads the template, it gives up memory and
CPU time beyond the limits and the right to open files, sockets and processes. It reports errors of
the template; if a limit ends it, the other side learns that from its exit code.
"""

import codecs
import marshal
import os
import resource
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from .environment import Refusal, Sandbox
from .limits import (
    COMPILE,
    DONE,
    FAILED,
    HEADER,
    MAX_CHARS,
    MEMORY,
    READY,
    REFUSED,
    SYNTAX,
    TEXT,
    Limits,
)

# Parts of a text are sent once they have this many characters together.
_CHUNK = 1 << 20
_PIPE = 0
# What Python and Jinja import on first use, when no file can be opened any more.
_LATE_MODULES = ("jinja2.debug", "pprint", "textwrap", "unicodedata")
_LATE_CODECS = ("ascii", "latin-1", "unicode-escape", "utf-8")


def main() -> None:
    """Serves until the other side hangs up."""
    _send(READY, f"{sys.version_info[0]}.{sys.version_info[1]}")
    server: _Server | None = None
    while (request := _receive()) is not None:
        kind, values = request
        try:
            if kind == COMPILE:
                limits = Limits(*values["limits"])
                _confine(limits.memory)
                server = _Server(values["source"], limits)
            else:
                assert server is not None
                server.render(values["variables"], _moment(*values["now"]))
            _send(DONE, "")
        except Refusal as error:
            _send(REFUSED, _message(error))
        except TemplateSyntaxError as error:
            _send(SYNTAX, f"line {error.lineno}: {_message(error)}")
        except MemoryError:
            _send(MEMORY, "")
        except Exception as error:  # a template can raise whatever Python can
            _send(FAILED, _message(error))


class _Server:
    """The compiled template."""

    def __init__(self, source: str, limits: Limits) -> None:
        _allow_seconds(limits.compile_seconds)
        self._limits = limits
        self._sandbox = Sandbox(limits.steps)
        self._template = self._sandbox.from_string(source)

    def render(self, variables: dict[str, Any], now: datetime) -> None:
        """Sends the text in parts."""
        _allow_seconds(self._limits.render_seconds)
        self._sandbox.restart(now)
        for chunk in chunks(self._template, variables):
            _send(TEXT, chunk)


def chunks(template: Template, variables: dict[str, Any]) -> Iterator[str]:
    """The rendered text in parts; raises Jinja's `TemplateError` if it is too long."""
    parts: list[str] = []
    total = waiting = 0
    for part in template.generate(variables):
        total += len(part)
        if total > MAX_CHARS:
            raise TemplateError(f"wrote more than {MAX_CHARS:,} characters; it may not end")
        parts.append(part)
        waiting += len(part)
        if waiting >= _CHUNK:
            text = "".join(parts)
            parts, waiting = [], 0
            yield text
    yield "".join(parts)


def _confine(memory: int) -> None:
    """From here on, nothing can be opened, written or started, and memory is limited.

    macOS does not enforce RLIMIT_AS: there, the other side watches the memory (`watch`).
    """
    for name in _LATE_MODULES:
        import_module(name)
    for name in _LATE_CODECS:
        codecs.lookup(name)
    sys.meta_path.remove(PathFinder)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    if sys.platform != "darwin":
        limits[resource.RLIMIT_AS] = memory
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))


def _allow_seconds(seconds: int) -> None:
    """Allows this much more CPU time, then SIGXCPU ends the process. Whole seconds only."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, hard))


def _moment(parts: tuple[int, ...], offset: float | None, zone: str | None) -> datetime:
    if offset is None:
        return datetime(*parts)  # type: ignore[arg-type]
    difference = timedelta(seconds=offset)
    return datetime(*parts, tzinfo=timezone(difference, zone or ""))  # type: ignore[arg-type,misc]


def _message(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:2000]


def _receive() -> tuple[bytes, dict[str, Any]] | None:
    header = _read(HEADER.size)
    if header is None:
        return None
    kind, length = HEADER.unpack(header)
    body = _read(length)
    return None if body is None else (kind, marshal.loads(body))


def _read(length: int) -> bytearray | None:
    """`length` bytes, or None if the other side hung up."""
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        count = os.readv(_PIPE, [view])
        if not count:
            return None
        view = view[count:]
    return buffer


def _send(kind: bytes, text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    for data in (HEADER.pack(kind, len(body)), body):
        view = memoryview(data)
        while view:
            view = view[os.write(_PIPE, view) :]
