"""A running process that compiles and renders one template, seen by the process that uses it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref

from ....system.children import ending
from ....system.text import one_line
from . import watch
from .errors import TemplateError
from .interpreter import command, environment
from .limits import COMPILE, DONE, HEADER, MAX_CHARS, MEMORY, READY, TEXT, Limits

FAILED_FOR_GOOD = b"X"
"""The process has ended, or must be ended."""


class Worker:
    """A running process; `TemplateError` where none can be started."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        arguments = command()
        parent_end, child_end = socket.socketpair()
        try:
            process = subprocess.Popen(
                arguments,
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment(),
                start_new_session=True,  # keeps Ctrl-C at the terminal from it
            )
        except OSError as error:
            parent_end.close()
            raise TemplateError(f"chat template: cannot start a process: {error}") from error
        finally:
            child_end.close()
        self._socket, self._process, self._owner = parent_end, process, os.getpid()
        self._program = arguments[0]
        self._deadline = 0.0
        self._greeted = False
        self.end = weakref.finalize(self, _end, process, parent_end, os.getpid())

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked: it runs, and this process started it, not its parent."""
        is_owner = self._owner == os.getpid()
        return is_owner and bool(self.end.alive) and self._process.poll() is None

    def ask(self, kind: bytes, request: bytes) -> tuple[bytes, str]:
        """How the request ended, and its text or error."""
        self._deadline = time.monotonic() + self._limits.wall_seconds
        try:
            if not self._greeted:
                self._greet()
            self._send(HEADER.pack(kind, len(request)))
            self._send(request)
            return self._answer()
        except TimeoutError:
            return FAILED_FOR_GOOD, f"took more than {self._limits.wall_seconds} s: it does not end"
        except OSError:  # it hung up
            return self._cause(kind)
        except watch.MemoryExceeded:
            return MEMORY, ""
        except ValueError as error:
            return FAILED_FOR_GOOD, f"its process sent an invalid answer: {error}"

    def _greet(self) -> None:
        kind, body = self._frame(limit=100)
        version, expected = body.decode("ascii"), f"{sys.version_info[0]}.{sys.version_info[1]}"
        if kind != READY or version != expected:
            raise TemplateError(
                f"chat template: {self._program} runs Python {one_line(version, 20)}, "
                f"expected {expected}, which kvarn runs on"
            )
        self._greeted = True

    def _answer(self) -> tuple[bytes, str]:
        text = bytearray()
        left = 4 * MAX_CHARS
        while True:
            kind, body = self._frame(left)
            if kind != TEXT:
                return kind, (text if kind == DONE else body).decode("utf-8", "surrogatepass")
            text += body
            left -= len(body) + HEADER.size

    def _frame(self, limit: int) -> tuple[bytes, bytearray]:
        kind, length = HEADER.unpack(self._receive(HEADER.size))
        if length > limit:
            raise ValueError(f"{length:,} bytes")
        return kind, self._receive(length)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._seconds_left())
            try:
                view = view[self._socket.send(view, getattr(socket, "MSG_NOSIGNAL", 0)) :]
            except TimeoutError:
                watch.check(self._process.pid, self._limits.memory)

    def _receive(self, length: int) -> bytearray:
        buffer = bytearray(length)
        view = memoryview(buffer)
        while view:
            self._socket.settimeout(self._seconds_left())
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                watch.check(self._process.pid, self._limits.memory)
                continue
            if not count:
                raise ConnectionError("hung up")
            view = view[count:]
        return buffer

    def _seconds_left(self) -> float:
        """Seconds to wait at once; `TimeoutError` where none are left."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, watch.INTERVAL)

    def _cause(self, kind: bytes) -> tuple[bytes, str]:
        """Why the process ended."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return FAILED_FOR_GOOD, "its process hung up"
        if code == -signal.SIGXCPU:
            limits = self._limits
            seconds = limits.compile_seconds if kind == COMPILE else limits.render_seconds
            return FAILED_FOR_GOOD, f"took more than {seconds} s of CPU time: it does not end"
        if code == -signal.SIGKILL:
            return FAILED_FOR_GOOD, "its process was killed, as a system short of memory does"
        return FAILED_FOR_GOOD, f"its process ended with {ending(code)}"


def _end(process: subprocess.Popen[bytes], parent_end: socket.socket, owner: int) -> None:
    parent_end.close()
    if owner == os.getpid():  # in a fork, only the socket is closed
        process.kill()
        process.wait()
