"""What the server can be asked: a table that each API adds to, for the router and for OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .beginnings import BEGINNINGS, ONLY, beginnings_of
from .service import Service
from .wire.bodies import decode, read_body
from .wire.streams import while_connected

Handler = Callable[[Service, Any, Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Operation:
    """One method of one path. body: the type of its JSON; None: it has none. parse: reads bodies of
    other kinds, too."""

    method: str
    path: str
    run: Handler
    body: type[msgspec.Struct] | None = None
    summary: str = ""
    parse: Callable[[Request, bytes], Any] | None = None


def routes(service: Service, operations: Iterable[Operation]) -> list[Route]:
    """A route for each path, which knows all of its methods."""
    paths: dict[str, list[Operation]] = {}
    for one in operations:
        paths.setdefault(one.path, []).append(one)
    return [_route(service, path, those) for path, those in paths.items()]


def _route(service: Service, path: str, operations: list[Operation]) -> Route:
    """Operations of one path: reads the body, and ends the work when the client is gone."""
    methods = {one.method: one for one in operations}

    class Endpoint:
        """(A class: starlette leaves ASGI callables as they are.)"""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            scope["kvarn.route"] = path
            request = Request(scope, receive)
            method = request.method
            operation = methods["GET" if method == "HEAD" else method]
            body: Any = None
            if operation.body is not None:
                data = await read_body(request, service.settings.limits)
                parse = operation.parse
                body = decode(data, operation.body) if parse is None else parse(request, data)
            run = operation.run
            if request.headers.get(ONLY) == BEGINNINGS:
                run = partial(beginnings_of, run)
            work = run(service, body, request)
            response = await while_connected(receive, work)
            await response(scope, receive, send)

    return Route(path, Endpoint(), methods=list(methods))
