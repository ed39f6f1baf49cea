"""What `kvarn route` passes on of a request: its path, and the headers that are its own."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from ...system.text import shown
from .errors import ApiError

_STAYS = frozenset(  # headers of one connection, or that `Guard` has checked
    b"connection content-length date expect host keep-alive origin proxy-authenticate "
    b"proxy-authorization proxy-connection te trailer transfer-encoding upgrade "
    b"x-content-type-options".split()
)


def path_of(scope: Scope) -> str:
    """The path with its query. Raises `ApiError` 400 for one that leads out of a server's own."""
    path, query = (scope[name].decode("latin-1") for name in ("raw_path", "query_string"))
    plain = path.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/")
    if not path.startswith("/") or ".." in plain.replace("\\", "/").split("/"):
        raise ApiError(400, f"the path is {shown(path)}, expected one from / on without ..")
    return f"{path}?{query}" if query else path


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a request or an answer without those of its connection."""
    lower = [(name.lower(), value) for name, value in headers]
    named = b",".join(value.lower() for name, value in lower if name == b"connection").split(b",")
    left_out = _STAYS | {name.strip() for name in named}
    return [(name, value) for name, value in lower if name not in left_out]
