"""All that the server can be asked: the table of its APIs, and the router of it."""

from __future__ import annotations

from starlette.routing import Router

from .anthropic import OPERATIONS as ANTHROPIC
from .health import HEALTH
from .native import OPERATIONS as NATIVE
from .ollama import OPERATIONS as OLLAMA
from .openai import OPERATIONS as OPENAI
from .openapi import description_of
from .operations import Operation, routes
from .page import OPERATIONS as PAGE
from .service import Service

APIS: tuple[Operation, ...] = (HEALTH, *OPENAI, *ANTHROPIC, *OLLAMA, *NATIVE)


def router(service: Service) -> Router:
    """All paths: the APIs, their description, and the page."""
    openapi = Operation("GET", "/openapi.json", description_of(APIS), summary="This description")
    return Router(routes(service, (*APIS, openapi, *PAGE)), redirect_slashes=False)
