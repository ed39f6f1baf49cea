"""/v1/models: the one that is served, in OpenAI's and Anthropic's fields."""

from __future__ import annotations

import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.serving.protocol import Ready
from ..service import Service, model_id, sizes_of
from ..wire.encoding import json_response


async def models(service: Service, body: None, request: Request) -> Response:
    """All models: one."""
    facts = service.ready()
    only = _model(service, facts)
    name = model_id(facts)
    ends = {"has_more": False, "first_id": name, "last_id": name}
    return json_response({"object": "list", "data": [only], **ends})


async def model(service: Service, body: None, request: Request) -> Response:
    """The model of this name."""
    facts = service.model_called(request.path_params["id"])
    return json_response(_model(service, facts))


def _model(service: Service, facts: Ready) -> dict[str, Any]:
    name, started = model_id(facts), int(service.started)
    time = datetime.datetime.fromtimestamp(started, datetime.UTC)
    return {
        "id": name,
        "object": "model",
        "created": started,
        "owned_by": "kvarn",
        "type": "model",
        "display_name": facts.name or name,
        "created_at": time.isoformat().replace("+00:00", "Z"),
        "meta": {"n_ctx": facts.n_ctx, **sizes_of(facts)},
    }
