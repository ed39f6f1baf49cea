"""/api/tags, /api/show, /api/ps and /api/version: what is served."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ...runtime.serving.protocol import Ready
from ..service import Service, model_id
from ..wire.encoding import json_response
from .requests import served
from .types import ShowRequest

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients refuse older ones."""


async def tags(service: Service, body: None, request: Request) -> Response:
    """All models: one."""
    return json_response({"models": [_model(service, service.ready())]})


async def ps(service: Service, body: None, request: Request) -> Response:
    """The models that are loaded: one."""
    facts = service.ready()
    more = {"size_vram": 0, "context_length": facts.n_ctx, "expires_at": _stamp(2**31)}
    return json_response({"models": [{**_model(service, facts), **more}]})


async def version(service: Service, body: None, request: Request) -> Response:
    """The version of the API, and kvarn's."""
    return json_response({"version": API_VERSION, "kvarn": __version__})


async def show(service: Service, body: ShowRequest, request: Request) -> Response:
    """What the model is."""
    facts = served(service, body)
    architecture = facts.architecture
    template = facts.chat_template
    can = ["completion"]
    can += ["tools"] if "tools" in template else []
    can += ["thinking"] if "think" in template else []
    return json_response(
        {
            "modelfile": f"FROM {facts.path}",
            "parameters": f"num_ctx {facts.n_ctx}",
            "template": template,
            "details": _details(facts),
            "model_info": {
                "general.architecture": architecture,
                "general.parameter_count": facts.n_params,
                f"{architecture}.context_length": facts.n_ctx,
                f"{architecture}.embedding_length": facts.n_embd,
                f"{architecture}.vocab_size": facts.n_vocab,
            },
            "capabilities": can,
            "modified_at": _stamp(service.started),
        }
    )


def _model(service: Service, facts: Ready) -> dict[str, Any]:
    name = model_id(facts)
    digest = hashlib.sha256(f"{facts.path}:{facts.n_bytes}".encode()).hexdigest()
    return {
        "name": name,
        "model": name,
        "modified_at": _stamp(service.started),
        "size": facts.n_bytes,
        "digest": digest,
        "details": _details(facts),
    }


def _details(facts: Ready) -> dict[str, Any]:
    billions = facts.n_params / 1e9
    size = f"{billions:.1f}B" if billions >= 1 else f"{billions * 1000:.0f}M"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.architecture,
        "families": [facts.architecture],
        "parameter_size": size,
        "quantization_level": facts.file_type,
    }


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
