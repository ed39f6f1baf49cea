"""The ASGI application: all APIs behind one guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import Router

from .anthropic import OPERATIONS as ANTHROPIC
from .native import OPERATIONS as NATIVE
from .ollama import OPERATIONS as OLLAMA
from .openai import OPERATIONS as OPENAI
from .openapi import description_of
from .operations import Operation, route
from .service import Service
from .wire.guard import Guard

APIS: tuple[Operation, ...] = (*OPENAI, *ANTHROPIC, *OLLAMA, *NATIVE)
OPERATIONS = (
    *APIS,
    Operation("GET", "/openapi.json", description_of(APIS), summary="This description"),
)


def application(service: Service) -> Guard:
    """All paths over one engine, which starts and stops with the application."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await service.engine.open()
        try:
            yield
        finally:
            await service.engine.stop(service.settings.limits.stop_seconds)

    routes = [route(service, operation) for operation in OPERATIONS]
    return Guard(Router(routes, redirect_slashes=False, lifespan=lifespan), service)
