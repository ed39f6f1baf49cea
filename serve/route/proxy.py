"""Passes requests on, each to the server that has read most of its prompt.

One server is asked for the digests of a prompt's beginnings (`serve/beginnings.py`), which this
process, without a tokenizer, cannot make. A server that does not answer, is full or stops is passed
over, and one that says 404: it may lack a pack. Nothing is sent twice once an answer has begun.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ...system.text import shown
from ..beginnings import BEGINNINGS, ONLY
from ..operations import Operation, routes
from ..service import Service
from ..wire.bodies import read_body
from ..wire.encoding import JSON, encode
from ..wire.errors import ApiError
from ..wire.guard import Guard
from ..wire.streams import Stream, while_connected
from .replicas import Replica, Replicas, digests_in

_LEAST_BYTES = 1024
"""A shorter request that names no pack has no 1,024 tokens."""
_ELSEWHERE = (404, 429, 503)
"""Statuses with which another server may answer otherwise."""
_OF_CONNECTION = frozenset(
    b"connection content-length date expect host keep-alive origin proxy-authenticate "
    b"proxy-authorization proxy-connection te trailer transfer-encoding upgrade "
    b"x-content-type-options".split()
)
"""Headers that are not passed on, beside those that `connection` names: of one connection, or
checked here (`Guard`)."""


def proxy(service: Service, replicas: Replicas) -> Guard:
    """The ASGI application over these servers, which are asked from its start to its end."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await replicas.open()
        try:
            yield
        finally:
            await replicas.stop(0)
            await replicas.client.aclose()

    async def health(service: Service, body: None, request: Request) -> Response:
        """200 while a server is ready."""
        is_ready = any(one.is_ready for one in replicas.all)
        status = "stopping" if service.is_stopping else "ok" if is_ready else "no server is ready"
        answer = {"status": status, "requests": service.n_requests - 1, "servers": replicas.told()}
        return Response(encode(answer), 200 if status == "ok" else 503, media_type=JSON)

    async def passing(scope: Scope, receive: Receive, send: Send) -> None:
        scope["kvarn.route"] = "passed on"
        request = Request(scope, receive)
        body = await read_body(request, service.settings.limits)
        response = await while_connected(receive, _answer(replicas, request, body))
        await response(scope, receive, send)

    own = routes(service, [Operation("GET", "/health", health)])
    return Guard(Router(own, False, passing, lifespan=lifespan), service)


async def _answer(replicas: Replicas, request: Request, body: bytes) -> Response:
    """What one of the servers answers. Raises `ApiError` 503 where none does."""
    digests: list[str] = []
    tried: set[Replica] = set()
    asks = ONLY in request.headers  # for digests itself: nothing is read of its prompt
    if request.method == "POST" and not asks and (len(body) >= _LEAST_BYTES or b'"pack"' in body):
        digests, tried = await _beginnings(replicas, request, body)
        if all(one in tried or not one.is_ready for one in replicas.all):
            tried = set()  # none has the pack, or the path: one of them says it best
    while (one := replicas.best(digests, tried)) is not None:
        tried.add(one)
        one.n_requests += 1
        answer = None
        try:
            answer = await _sent(replicas, one, request, body)
        except httpx.TransportError as error:
            replicas.lose(one, error)
        finally:
            if answer is None:
                one.n_requests -= 1
        if answer is None:
            continue
        if answer.status_code in _ELSEWHERE and replicas.best(digests, tried) is not None:
            one.n_requests -= 1
            await answer.aclose()
            continue
        one.remember(digests)
        return _Passed(replicas, one, answer)
    raise ApiError(503, "no server is ready: try again later; /health says more")


async def _beginnings(
    replicas: Replicas, request: Request, body: bytes
) -> tuple[list[str], set[Replica]]:
    """The digests of a request's prompt, and the servers that cannot answer it."""
    lacking: set[Replica] = set()
    while (one := replicas.best((), lacking)) is not None and one.tells:
        try:
            only = [(ONLY.encode(), BEGINNINGS.encode())]
            answer = await _sent(replicas, one, request, body, only)
            await answer.aread()
        except httpx.RequestError as error:
            replicas.lose(one, error)
            continue
        if answer.status_code == 200:
            try:
                return digests_in(answer), lacking
            except ValueError:  # another program listens there since it was asked last
                break
        if answer.status_code not in _ELSEWHERE:
            break  # the request is wrong, or reads no prompt: the answer tells
        lacking.add(one)
    return [], lacking


async def _sent(
    replicas: Replicas,
    one: Replica,
    request: Request,
    body: bytes,
    more: Sequence[tuple[bytes, bytes]] = (),
) -> httpx.Response:
    """The answer of a server, whose body is not read yet."""
    path = request.scope["raw_path"].decode("latin-1")
    # Anything else would name another server, or a path outside of the server's own.
    if not path.startswith("/") or ".." in path.lower().replace("%2e", ".").split("/"):
        raise ApiError(400, f"the path is {shown(path)}, expected one from / on without ..")
    query = request.scope["query_string"].decode("latin-1")
    url = f"{one.url}{path}{'?' if query else ''}{query}"
    headers = [*_passed_on(request.headers.raw), *more]
    asked = replicas.client.build_request(request.method, url, headers=headers, content=body)
    return await replicas.client.send(asked, stream=True)


class _Passed(Stream):
    """The answer of a server, piece by piece as it comes."""

    def __init__(self, replicas: Replicas, one: Replica, answer: httpx.Response) -> None:
        super().__init__(answer.aiter_raw(), "")
        self._replicas, self._one, self._answer = replicas, one, answer
        self.status_code = answer.status_code
        self.raw_headers = _passed_on(answer.headers.raw)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except httpx.TransportError as error:
            self._replicas.lose(self._one, error)
            raise ApiError(503, f"{self._one.url} ended in the middle of its answer") from error
        finally:
            self._one.n_requests -= 1
            await self._answer.aclose()


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    found = [(name.lower(), value) for name, value in headers]
    named = b",".join(value.lower() for name, value in found if name == b"connection").split(b",")
    left_out = _OF_CONNECTION | {name.strip() for name in named}
    return [(name, value) for name, value in found if name not in left_out]
