"""Passes requests on, each to the server that has read most of its prompt.

One server is asked for the digests of a prompt's beginnings (`serve/beginnings.py`), which this
process, without a tokenizer, cannot make. A server that does not answer, is full or stops is passed
over, and one that says 404: it may lack a pack. Nothing is sent twice once an answer has begun.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from ..wire.streams import while_connected
from .replicas import NO_ANSWER, NO_SERVER, Replica, Replicas, digests_in

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
        servers = [one.as_dict() for one in replicas.all]
        answer = {"status": status, "requests": service.n_requests - 1, "servers": servers}
        return Response(encode(answer), 200 if status == "ok" else 503, media_type=JSON)

    async def passing(scope: Scope, receive: Receive, send: Send) -> None:
        scope["kvarn.route"] = "passed on"
        request = Request(scope, receive)
        if {"content-length", "transfer-encoding"} & {*request.headers}:
            await replicas.check_key(request.headers)  # before a stranger's body is read
        passed = _Passed(replicas, request, await read_body(request, service.settings.limits))
        await while_connected(receive, passed.answer(send))

    own = routes(service, [Operation("GET", "/health", health)])
    return Guard(Router(own, False, passing, lifespan=lifespan), service)


class _Passed:
    """A request, and the servers that did not answer it. Raises `ApiError` 400 for a path that
    would name another server, or one outside of the server's own."""

    def __init__(self, replicas: Replicas, request: Request, body: bytes) -> None:
        self._replicas, self._request, self._body = replicas, request, body
        self._headers, self._tried = _passed_on(request.headers.raw), set[Replica]()
        path = request.scope["raw_path"].decode("latin-1")
        if not path.startswith("/") or ".." in path.lower().replace("%2e", ".").split("/"):
            raise ApiError(400, f"the path is {shown(path)}, expected one from / on without ..")
        query = request.scope["query_string"].decode("latin-1")
        self._path = f"{path}{'?' if query else ''}{query}"

    async def answer(self, send: Send) -> None:
        """Send what one of the servers answers, piece by piece as it comes. Raises `ApiError` 503
        where none does."""
        replicas, tried = self._replicas, self._tried
        digests = await self._beginnings() if self._may_be_long() else []
        if all(one in tried or not one.is_ready for one in replicas.all):
            tried.clear()  # none has the pack, or the path: one of them says it best
        while (one := replicas.best(digests, tried)) is not None:
            tried.add(one)
            has_begun = False
            try:
                async with self._sent(one, *self._headers) as answer:
                    if answer.status_code in _ELSEWHERE and replicas.best(digests, tried):
                        continue
                    one.remember(digests)
                    has_begun = True
                    head = {"status": answer.status_code, "headers": _passed_on(answer.headers.raw)}
                    await send({"type": "http.response.start", **head})
                    part = {"type": "http.response.body", "more_body": True}
                    async for piece in answer.aiter_raw():
                        await send({**part, "body": piece})
                    return await send({**part, "body": b"", "more_body": False})
            except NO_ANSWER as error:
                replicas.lose(one, error)
                if has_begun:
                    raise ApiError(503, f"{one.url} ended in the middle of its answer") from error
        raise ApiError(503, NO_SERVER)

    def _may_be_long(self) -> bool:
        """Whether its prompt may have a beginning. One that asks for digests itself reads none."""
        asks = self._request.method != "POST" or ONLY in self._request.headers
        return not asks and (len(self._body) >= _LEAST_BYTES or b'"pack"' in self._body)

    async def _beginnings(self) -> list[str]:
        """The digests of its prompt; servers that cannot answer it are tried then."""
        while (one := self._replicas.best((), self._tried)) is not None and one.tells:
            try:
                only = (ONLY.encode(), BEGINNINGS.encode())
                async with self._sent(one, *self._headers, only) as answer:
                    await answer.aread()
            except NO_ANSWER as error:
                self._replicas.lose(one, error)
                continue
            if answer.status_code == 200:
                try:
                    return digests_in(answer)
                except ValueError:  # another program listens there since it was asked last
                    break
            if answer.status_code not in _ELSEWHERE:
                break  # the request is wrong, or reads no prompt: the answer tells
            self._tried.add(one)
        return []

    def _sent(
        self, one: Replica, *headers: tuple[bytes, bytes]
    ) -> AbstractAsyncContextManager[httpx.Response]:
        method, content = self._request.method, self._body
        return self._replicas.sent(one, method, self._path, headers, content)


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    found = [(name.lower(), value) for name, value in headers]
    named = b",".join(value.lower() for name, value in found if name == b"connection").split(b",")
    left_out = _OF_CONNECTION | {name.strip() for name in named}
    return [(name, value) for name, value in found if name not in left_out]
