"""`/` and the page's files under /static/: those that are listed here, and no others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ..operations import Operation
from ..service import Service

FOLDER = Path(__file__).parent
PAGE = "page.html"
_JAVASCRIPT, _CSS = "text/javascript", "text/css"
STATIC: Mapping[str, str] = {
    "page.css": _CSS,
    **dict.fromkeys(("page.js", "api.js", "answer.js", "documents.js", "lens.js"), _JAVASCRIPT),
    "vendor/pico.min.css": _CSS,
    "vendor/marked.esm.js": _JAVASCRIPT,
    "vendor/purify.min.js": _JAVASCRIPT,
}
"""File → its type."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load and ask: this server alone, and no script that stands in the page."""


class _File(NamedTuple):
    content: bytes
    headers: dict[str, str]
    media_type: str


@cache
def _file(name: str) -> _File:
    content = (FOLDER / name).read_bytes()
    headers = {
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "Cache-Control": "no-cache",  # browsers keep it, and ask whether it is still the same
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    return _File(content, headers, STATIC.get(name, "text/html"))


def _operation(path: str, name: str) -> Operation:
    async def answer(service: Service, body: None, request: Request) -> Response:
        """The file, or 304 where the client has it."""
        file = _file(name)
        known = request.headers.get("if-none-match", "")
        if file.headers["ETag"] in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers, media_type=file.media_type)

    return Operation("GET", path, answer, summary=f"The page: {name}")


OPERATIONS = (
    _operation("/", PAGE),
    *(_operation(f"/static/{name}", name) for name in STATIC),
)
