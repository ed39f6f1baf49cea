"""The ASGI application: all APIs behind one guard.

The APIs are imported by a thread after the engine was started: that takes as long as all that must
be there before. Until then /health is answered, and other requests wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from .health import HEALTH
from .operations import routes
from .service import Service
from .wire.guard import Guard


def application(service: Service) -> Guard:
    """All paths over one engine, which starts and stops with the application."""
    loading: asyncio.Future[Router]

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        nonlocal loading
        await service.engine.open()
        loading = asyncio.ensure_future(asyncio.to_thread(_router, service))
        try:
            yield
        finally:
            await service.engine.stop(service.settings.limits.stop_seconds)

    async def apis(scope: Scope, receive: Receive, send: Send) -> None:
        await (await loading)(scope, receive, send)

    return Guard(Router(routes(service, [HEALTH]), False, apis, lifespan=lifespan), service)


def _router(service: Service) -> Router:
    module: Any = import_module(".apis", __package__)
    made: Router = module.router(service)
    return made
