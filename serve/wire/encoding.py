"""Encodes answers as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

JSON = "application/json"
encode = msgspec.json.Encoder().encode


def json_response(content: Any) -> Response:
    return Response(encode(content), media_type=JSON)


def event(content: Any, name: str = "") -> bytes:
    """A server-sent event with JSON as its data."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (head, encode(content))


WAITING = b": waiting\n\n"
"""A comment of a stream of events that has nothing to say for a while."""


def read_so_far(done: int, total: int) -> bytes:
    """A comment of a stream of events while a prompt is read."""
    return b": %d of %d tokens read\n\n" % (done, total)


def line(content: Any) -> bytes:
    """A line of NDJSON."""
    return encode(content) + b"\n"
