"""One error of a request, and the shape that each API gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ...runtime.chat.openai.errors import RequestError
from ...runtime.chat.openai.errors import invalid as invalid  # noqa: PLC0414 - exported
from ...runtime.serving.calls import RequestRefused
from ...runtime.serving.protocol import Kind
from .encoding import JSON, encode

_OPENAI = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_STATUS: Mapping[Kind, int] = {
    "invalid": 400,
    "too long": 400,
    "not found": 404,
    "busy": 429,
    "engine": 503,
}
RETRY_SECONDS = {429: 1, 503: 2}
"""After which a client may try again. Requests wait for seconds, and an engine starts in three."""


class ApiError(RequestError):
    """A request that is not answered: a status, one sentence, the path of the field in question."""

    def __init__(self, status: int, message: str, field: str = "", code: str | None = None) -> None:
        super().__init__(message, field)
        self.status = status
        self.code = code


class ClientGone(Exception):
    """The client closed its connection, or did not read what it asked for."""


def api_error(error: BaseException) -> ApiError:
    """The API's error for any exception.

    The text of errors that are not the client's is left out: it may hold parts of a prompt."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), error.field)
    if isinstance(error, RequestRefused):
        refused = error.refused
        code = "context_length_exceeded" if refused.kind == "too long" else None
        return ApiError(_STATUS[refused.kind], refused.message, code=code)
    if isinstance(error, OverflowError):
        return ApiError(400, "the body has a whole number of more than 64 bits, expected fewer")
    return ApiError(500, f"unexpected {type(error).__name__} (a fault of kvarn: see its log)")


def shape(path: str, error: ApiError) -> dict[str, Any]:
    """The error in the form of the API that has this path."""
    message = str(error)
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}
    if path.startswith("/api/"):
        return {"error": message}
    kind = _OPENAI.get(error.status, "invalid_request_error")
    fields = {"message": message, "type": kind, "param": error.field or None, "code": error.code}
    return {"error": fields}


def error_response(path: str, error: ApiError) -> Response:
    """The error as an answer, with `Retry-After` where trying again may help."""
    headers = {}
    if (seconds := RETRY_SECONDS.get(error.status)) is not None:
        headers["Retry-After"] = str(seconds)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(encode(shape(path, error)), error.status, headers, JSON)
