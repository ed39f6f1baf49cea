"""Around all paths: who may ask, how many at once, and what becomes of clients that do not read.

A page of another site can send requests to a server on this machine, and with a name that it lets
point here (DNS rebinding) read the answers. So the Host header must name this server, and an Origin
header the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...system.text import shown
from ...system.values import LOOPBACK
from ..service import Service
from ..settings import Settings
from .errors import ApiError, ClientGone, error_response

OPEN_PATHS = ("/", "/health")
"""Paths that need no key, beside the page's files under /static/."""
GIVE_KEY = "send Authorization: Bearer KEY, or x-api-key: KEY"
CLIENT_GONE = 499
"""The status in the log of a request whose client went away (nginx's number)."""


class Guard:
    """ASGI: checks each request, turns errors into answers, writes the log."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._hosts = _host_names(service.settings)
        self._keys = [_digest(key) for key in service.settings.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.monotonic(), CLIENT_GONE
        service, path = self._service, scope["path"]
        scope["kvarn.numbers"] = numbers = dict[str, int]()
        scope["app"] = self  # so that the router raises what it does not know

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await self._send(scope, send, message)

        service.n_requests += 1
        try:
            self._check(scope)
            await self._app(scope, receive, sending)
        except ClientGone:
            status = CLIENT_GONE
        except Exception as error:
            answer = self._error(scope, error)
            if status != CLIENT_GONE:  # part of an answer is sent already
                abort(scope)
            else:
                await error_response(path, answer)(scope, receive, sending)
        finally:
            service.n_requests -= 1
            seconds = time.monotonic() - started
            service.count(scope, status, seconds)
            service.log.request(scope["method"], path, status, seconds, numbers)

    async def _send(self, scope: Scope, send: Send, message: Message) -> None:
        """Send, and give up on a client that reads nothing for too long."""
        seconds = self._service.settings.limits.stalled_seconds
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            abort(scope)
            raise ClientGone from None

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and not _is_name_of(host, self._hosts):
            raise ApiError(403, f"Host is {shown(host)}, expected the name of this server")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise ApiError(403, f"Origin is {shown(origin)}, expected this server's own page")
        if self._keys and not _is_open(scope["path"]):
            self._check_key(headers)
        limits = self._service.settings
        most = 2 * (limits.parallel + limits.limits.queue)
        if scope["method"] == "POST" and self._service.n_requests > most:
            raise ApiError(429, f"{most} requests are at work already: try again later")

    def _check_key(self, headers: Headers) -> None:
        scheme, _, word = headers.get("authorization", "").partition(" ")
        key = word.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            raise ApiError(401, f"no key: {GIVE_KEY}")
        digest = _digest(key)
        # All keys are compared, each in constant time: how long it takes tells nothing.
        if not sum(hmac.compare_digest(digest, known) for known in self._keys):
            code = "invalid_api_key"
            raise ApiError(401, "the key is wrong: the server was started with another", code=code)

    def _error(self, scope: Scope, error: Exception) -> ApiError:
        if isinstance(error, HTTPException):
            return _router_error(scope["path"], scope["method"], error)
        return self._service.error_of(error)


def _router_error(path: str, method: str, error: HTTPException) -> ApiError:
    """The error for a path or method that starlette's router refuses."""
    if error.status_code == 404:
        return ApiError(404, f"{method} {shown(path)}: no such path; /openapi.json lists them")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method").split(", ")
        expected = ", ".join(sorted({*allowed} - {"HEAD"}))  # which goes with GET
        return ApiError(405, f"{shown(path)}: method is {shown(method)}, expected {expected}")
    return ApiError(error.status_code, str(error.detail))


def abort(scope: Scope) -> None:
    """Close a connection at once, and drop what its client did not read."""
    if (transport := scope.get("state", {}).get("transport")) is not None:
        transport.abort()


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith("/static/")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _host_names(settings: Settings) -> frozenset[str] | None:
    """The names under which this server may be asked; None: any, as pages know no key."""
    if settings.keys:
        return None
    names = {settings.host, *LOOPBACK}
    if not settings.is_loopback:
        name = socket.gethostname().lower()
        names |= {name, f"{name}.local", name.partition(".")[0]}
    return frozenset(names)


def _is_name_of(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this server. Addresses cannot be rebound, names can."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        _ = urlsplit(f"//{host}").port
    except ValueError:
        return False
    return name in names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
