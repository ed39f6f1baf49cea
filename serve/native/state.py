"""/props: the model and how it is served."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ..service import Service, model_id, sizes_of
from ..wire.encoding import json_response


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
            "model": {"architecture": facts.architecture, **sizes_of(facts)},
            "build_info": f"kvarn {__version__}",
        }
    )
