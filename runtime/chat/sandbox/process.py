"""The process that renders one template, seen by the process that uses it.

It is a Python with three packages and almost no environment. Linux holds it to its limit of memory
(RLIMIT_AS). macOS accepts that limit and ignores it: there, the waiting side checks the memory
every few milliseconds and ends a process that has too much.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import weakref
from importlib.util import find_spec
from pathlib import Path

from ....system.errors import KvarnError
from ....system.text import one_line
from .limits import COMPILE, DONE, HEADER, MAX_CHARS, MEMORY, READY, TEXT, Limits

_CHECKS_MEMORY = sys.platform == "darwin"
_INTERVAL = 0.005 if _CHECKS_MEMORY else 3600.0  # seconds between two checks
# Imports the packages given as NAME FOLDER pairs, and makes no others importable.
_BOOT = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
for name, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    spec = spec_from_file_location(
        name, folder + "/__init__.py", submodule_search_locations=[folder]
    )
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
from sandbox.worker import main
main()
"""
# What an interpreter may need to find its libraries, and the time zone for strftime's %s.
_ENVIRONMENT = ("DYLD_LIBRARY_PATH", "LD_LIBRARY_PATH", "TZ")
FAILED_FOR_GOOD = b"X"
"""The process has ended, or must be ended."""


class TemplateError(KvarnError):
    """A chat template cannot be read or rendered, or refuses the conversation."""


class _TooMuchMemory(Exception):
    """The process has more memory than it may."""


class Worker:
    """A running process; `TemplateError` where none can be started."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        program = _interpreter()
        parent_end, child_end = socket.socketpair()
        try:
            process = subprocess.Popen(
                [program, "-I", "-S", "-X", "utf8", "-c", _BOOT, *_packages()],
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # keeps Ctrl-C at the terminal from it
            )
        except OSError as error:
            parent_end.close()
            raise TemplateError(f"chat template: cannot start a process: {error}") from error
        finally:
            child_end.close()
        self._socket, self._process, self._owner = parent_end, process, os.getpid()
        self._program = program
        self._deadline = 0.0
        self._greeted = False
        self.end = weakref.finalize(self, _end, process, parent_end, os.getpid())

    @property
    def alive(self) -> bool:
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
        except _TooMuchMemory:
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
            self._socket.settimeout(self._patience())
            try:
                view = view[self._socket.send(view, getattr(socket, "MSG_NOSIGNAL", 0)) :]
            except TimeoutError:
                self._check_memory()

    def _receive(self, length: int) -> bytearray:
        buffer = bytearray(length)
        view = memoryview(buffer)
        while view:
            self._socket.settimeout(self._patience())
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                self._check_memory()
                continue
            if not count:
                raise ConnectionError("hung up")
            view = view[count:]
        return buffer

    def _check_memory(self) -> None:
        """Raises `_TooMuchMemory` on macOS; Linux enforces the limit itself."""
        if _CHECKS_MEMORY and _footprint(self._process.pid) > self._limits.memory:
            raise _TooMuchMemory

    def _patience(self) -> float:
        """Seconds to wait at once; `TimeoutError` where none are left."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, _INTERVAL)

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
        end = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"
        return FAILED_FOR_GOOD, f"its process ended with {end}"


def _end(process: subprocess.Popen[bytes], parent_end: socket.socket, owner: int) -> None:
    parent_end.close()
    if owner == os.getpid():  # in a fork, only the socket is closed
        process.kill()
        process.wait()


def _packages() -> list[str]:
    """Name and folder of each package that the process imports, dependencies first."""
    folders = {}
    for name in ("markupsafe", "jinja2"):
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise TemplateError(f"chat template: the package {name} is missing: install it")
        folders[name] = spec.submodule_search_locations[0]
    folders["sandbox"] = str(Path(__file__).parent)
    return [word for pair in folders.items() for word in pair]


def _interpreter() -> str:
    """The running Python. If it is embedded in a C program, `sys.executable` may be that one."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = [
        sys.executable,
        getattr(sys, "_base_executable", None),
        str(Path(sysconfig.get_config_var("BINDIR") or sys.exec_prefix) / name),
        str(Path(sys.exec_prefix) / "bin" / name),
    ]
    paths = [path for path in candidates if path]
    for path in paths:
        is_python = re.match(r"(python|pypy)[\d.]*[a-z]?(\.exe)?$", Path(path).name, re.IGNORECASE)
        if is_python and os.access(path, os.X_OK):
            return path
    raise TemplateError(
        "chat template: templates are rendered in a process of their own, which needs the program "
        f"{name}; found none at {', '.join(dict.fromkeys(paths))}: install it there"
    )


class _Usage(ctypes.Structure):
    """`rusage_info_v0` of macOS's <sys/resource.h>."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("idle_wakeups", ctypes.c_uint64),
        ("interrupt_wakeups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("phys_footprint", ctypes.c_uint64),
        ("start_time", ctypes.c_uint64),
        ("exit_time", ctypes.c_uint64),
    )


def _footprint(pid: int) -> int:
    """Bytes of memory of a child process on macOS; 0 if it has just ended."""
    usage = _Usage()
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(0), ctypes.byref(usage))
    return 0 if failed else int(usage.phys_footprint)
