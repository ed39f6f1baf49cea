"""A Ray to run workers in: one that is here, or one on this machine for one command alone."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..jit.machine import usable_cpus
from ..system.errors import KvarnError
from ..system.extras import require_extra
from ..system.text import one_line

LOCAL = "local"
"""The address that stands for a Ray of this machine alone."""
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 60.0
_CONNECTS = """
import sys, ray
try:
    ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
except Exception as error:
    print("refused:", error)
    sys.exit(1)
"""
_TOKEN_FILE = "~/.ray/auth_token"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OBJECT_BYTES = 256 << 20
"""Shared memory for texts on their way to workers; more than that goes through files."""
_QUIET = {
    # On Linux, Ray otherwise listens on all interfaces, also where it is told 127.0.0.1; this
    # switch, made for macOS, has all its servers bind to loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextmanager
def connected(address: str, n_workers: int, threads: int | None) -> Iterator[Any]:
    """The module of Ray, connected to the cluster of `address`, or to a Ray of this machine.

    address: "local", "auto" (the cluster that this machine is in), or HOST:PORT. n_workers and
    threads: for a local Ray, which ends with the block. Raises `KvarnError` without Ray, and where
    no cluster of the same versions answers.
    """
    if address == LOCAL:
        os.environ.update({name: os.environ.get(name, _QUIET[name]) for name in _QUIET})
        if not any(name in os.environ for name in _TOKENS):
            # A secret of this Ray alone: else Ray keeps one in the user's home folder.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        ray = _imported()
        options: dict[str, Any] = {
            "num_cpus": max(len(usable_cpus()), n_workers * (threads or 1)),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_BYTES,
        }
        with _running(ray, address, options):
            yield ray
        return
    if any(name in os.environ for name in _TOKENS) or Path(_TOKEN_FILE).expanduser().is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as `ray start` does, but not `ray.init`
    ray = _imported()
    if address != "auto":
        _check(address)
    with _running(ray, address, {}):
        yield ray


def _imported() -> Any:
    with require_extra("ray", "--ray"):
        ray = importlib.import_module("ray")
    # Ray prints of dead workers to stdout, which is for answers; the queue tells of them.
    ray._private.worker.print_to_stdstream = _print_nothing
    return ray


def _print_nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def _running(ray: Any, address: str, options: dict[str, Any]) -> Iterator[None]:
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise KvarnError(f"--ray {address}: {_reason(str(error))}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _reason(text: str) -> str:
    if text.startswith("Version mismatch"):
        text = " ".join(text.split())
        return f"{one_line(text, 400)} (all machines need the same versions of Ray and Python)"
    if "Could not find any running Ray" in text:
        return "this machine is in no cluster: `ray start --address HEAD:6379` joins one"
    return one_line(text.split("\n")[0], 300)


def _check(address: str) -> None:
    """Raise `KvarnError` unless a Ray answers at HOST:PORT. Tried in another process: to an address
    where none does, Ray's own connection waits for minutes, and then ends the process."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "//" in address:
        raise KvarnError(
            f"--ray {address}: expected {LOCAL}, auto, or HOST:PORT as `ray start --head` tells it"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise KvarnError(f"--ray {address} does not answer: {error}") from error
    command = [sys.executable, "-c", _CONNECTS, address]
    try:
        tried = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        tried = None
    if tried is not None and tried.returncode == 0:
        return
    reason = "what answers there is no Ray"
    if tried is not None and "InvalidAuthToken" in tried.stderr:
        reason = f"it wants another token than this machine has in {_TOKEN_FILE}"
    elif tried is not None and tried.stdout.startswith("refused:"):
        reason = _reason(tried.stdout.removeprefix("refused: "))
    raise KvarnError(f"--ray {address}: {reason}")
