"""/openapi.json: what the server can be asked, made of the types that requests are read into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from .operations import Handler, Operation
from .service import Service
from .wire.encoding import json_response

_ERRORS = {
    "400": "A wrong body, or what the model cannot do",
    "401": "No key, or a wrong one",
    "404": "Another model, a pack or path that is not there",
    "413": "A body that is too large",
    "415": "A body that is packed",
    "429": "Too many requests",
    "503": "The model is loading, or was ended",
}


def description_of(operations: Sequence[Operation]) -> Handler:
    """The handler that answers with the description of these operations."""
    made: dict[str, Any] = {}

    async def openapi(service: Service, body: None, request: Request) -> Response:
        """The OpenAPI description."""
        if not made:
            made.update(described(operations))
        return json_response(made)

    return openapi


def described(operations: Sequence[Operation]) -> dict[str, Any]:
    """The description of these operations."""
    bodies = [operation.body for operation in operations if operation.body is not None]
    references, schemas = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    schema = dict(zip(bodies, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        entry: dict[str, Any] = {
            "summary": operation.summary,
            "operationId": f"{operation.method} {operation.path}".lower(),
            "responses": {
                "200": {"description": "The answer"},
                **{status: {"description": words} for status, words in _ERRORS.items()},
            },
        }
        path = operation.path.replace(":path}", "}")
        if "{" in path:
            name = path[path.index("{") + 1 : path.index("}")]
            where = {"in": "path", "required": True, "schema": {"type": "string"}}
            entry["parameters"] = [{"name": name, **where}]
        if operation.body is not None:
            content: dict[str, Any] = {"application/json": {"schema": schema[operation.body]}}
            if operation.parse is not None:
                content["multipart/form-data"] = {"schema": {"type": "object"}}
            entry["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvarn", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
