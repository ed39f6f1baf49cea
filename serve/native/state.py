"""/health and /props: what the server is doing, and with what."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ..service import Service, model_id
from ..wire.encoding import JSON, encode, json_response
from ..wire.errors import RETRY_SECONDS

_STATUS = {"ready": "ok", "loading": "loading model", "stopping": "stopping"}


async def health(service: Service, body: None, request: Request) -> Response:
    """200 when requests are answered, 503 before and after."""
    engine = service.engine
    state = "stopping" if service.is_stopping else engine.state
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


async def props(service: Service, body: None, request: Request) -> Response:
    """The model, and the options of the server."""
    facts, settings = service.ready(), service.settings
    return json_response(
        {
            "model_alias": model_id(facts),
            "model_path": facts.path,
            "total_slots": settings.parallel,
            "chat_template": facts.chat_template,
            "default_generation_settings": {"n_ctx": facts.n_ctx, "params": dict(settings.words)},
            "model": {
                "architecture": facts.architecture,
                "n_ctx_train": facts.n_ctx_train,
                "n_vocab": facts.n_vocab,
                "n_embd": facts.n_embd,
                "n_params": facts.n_params,
                "size": facts.n_bytes,
            },
            "build_info": f"kvarn {__version__}",
        }
    )
