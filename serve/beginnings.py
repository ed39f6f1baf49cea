"""What a proxy asks to find the server that has read most of a request (`route`): digests of the
first 1,024, 2,048, … tokens.

    GET /beginnings                                   of all that was read
    POST any path, with kvarn-only: beginnings        of the prompt that the request would read

Both answer {"digests": […]}. Neither reads a token, generates or changes anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..runtime.serving.client import EngineClient
from ..runtime.serving.prompt import Prompt, Reading
from .service import Service
from .wire.encoding import json_response
from .wire.errors import ApiError

ONLY, BEGINNINGS = "kvarn-only", "beginnings"
"""The header of a request that asks only for those of its prompt."""
Run = Callable[[Service, Any, Request], Coroutine[Any, Any, Response]]


class _Digests(msgspec.Struct):
    digests: list[str]


def digests_in(answer: bytes) -> list[str]:
    """Those of an answer. Raises ValueError for another program's."""
    try:
        return msgspec.json.decode(answer, type=_Digests).digests
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


async def list_digests(service: Service, body: None, request: Request) -> Response:
    """The digests of all that was read."""
    service.ready()
    return json_response({"digests": await service.engine.beginnings()})


async def beginnings_of(run: Run, service: Service, body: Any, request: Request) -> Response:
    """The digests of the prompt of a request, which `run` answers otherwise. Raises what refuses
    the request."""
    asking = cast(EngineClient, _CapturingEngine(service.engine))
    try:
        await run(replace(service, engine=asking), body, request)
    except _PromptCaptured as asked:
        digests = await service.engine.beginnings(asked.prompt, asked.reading)
        return json_response({"digests": digests})
    raise ApiError(400, f"{ONLY}: {request.method} {request.url.path} reads no prompt")


class _PromptCaptured(Exception):
    def __init__(self, prompt: Prompt, reading: Reading | None) -> None:
        self.prompt, self.reading = prompt, reading


class _CapturingEngine:
    """An engine that raises the prompt that it is asked to read, and changes nothing."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if name in ("state", "step", "reason", "restarts", "facts", "counters", "render"):
            return getattr(self._engine, name)
        raise ApiError(400, f"{ONLY}: this path reads no prompt")

    async def generate(self, prompt: Prompt, **fields: Any) -> AsyncIterator[Any]:
        raise _PromptCaptured(prompt, fields.get("reading"))
        yield  # it is a generator
