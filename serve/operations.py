"""What the server can be asked: a table that each API adds to, for the router and for OpenAPI."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .service import Service
from .wire.bodies import decode, read_body
from .wire.streams import while_connected

Handler = Callable[[Service, Any, Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Operation:
    """One method of one path. body: the type of its JSON; None: it has none. empty: the body may be
    missing. first: the first path of those that do the same."""

    method: str
    path: str
    run: Handler
    body: type[msgspec.Struct] | None = None
    summary: str = ""


def route(service: Service, operation: Operation) -> Route:
    """The operation as a route: reads the body, and ends the work when the client is gone."""

    class Endpoint:
        """(A class: starlette leaves ASGI callables as they are.)"""

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            scope["kvarn.route"] = operation.path
            request = Request(scope, receive)
            body: msgspec.Struct | None = None
            if operation.body is not None:
                data = await read_body(request, service.settings.limits)
                body = decode(data, operation.body)
            work = operation.run(service, body, request)
            response = await while_connected(receive, work)
            await response(scope, receive, send)

    return Route(operation.path, Endpoint(), methods=[operation.method])
