"""/health: whether requests are answered. Apart from the APIs, so that it is there before them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from .operations import Operation
from .service import Service
from .wire.encoding import JSON, encode, json_response
from .wire.errors import RETRY_SECONDS

_STATUS = {"ready": "ok", "loading": "loading model", "stopped": "stopping"}


async def health(service: Service, body: None, request: Request) -> Response:
    """200 when requests are answered, 503 before and after."""
    engine = service.engine
    state = "stopped" if service.is_stopping else engine.state
    answer = {
        "status": _STATUS.get(state, "error"),
        "detail": engine.step if state == "loading" else engine.reason,
        "restarts": engine.restarts,
        "requests": service.n_requests - 1,
        "notices": list(engine.notices),
    }
    if state == "ready":
        return json_response(answer)
    headers = {"Retry-After": str(RETRY_SECONDS[503])}
    return Response(encode(answer), 503, headers, JSON)


HEALTH = Operation("GET", "/health", health, summary="Whether the model is there")
