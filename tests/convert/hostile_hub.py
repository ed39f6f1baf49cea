"""Answers of a hub that means harm, or is broken, or is no hub: one repository for each.

A case says what is wrong in its listing, in how it is sent, or in what comes for its file; and
whether the pull has to be refused, or goes well because what is wrong must not matter.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from .hub_server import Hub, Repository, info, tiny_gguf

SIZE = 5000
FILE = "model-Q8_0.gguf"

Handler = BaseHTTPRequestHandler
Listing = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is wrong with one repository."""

    name: str
    listing: Callable[[Listing], object] | None = None
    """Changes the listing, or gives another value for it."""
    send_listing: Callable[[Handler, bytes], None] | None = None
    send_file: Callable[[Handler, bytes], None] | None = None
    well: bool = False
    """What is wrong has no effect: the file comes, and is right."""

    @property
    def repo(self) -> str:
        """The name of its repository."""
        return "org/" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def reply(h: Handler, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    """An answer as it is given here, whether it makes sense or not."""
    lines = [f"HTTP/1.1 {status} X", *(f"{key}: {value}" for key, value in headers.items())]
    h.wfile.write("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body)
    h.close_connection = True


def whole(h: Handler, body: bytes, **headers: str) -> None:
    """A body as it ought to be sent, with other headers."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    reply(h, 200, {"Content-Length": str(len(body)), **named}, body)


def drip(h: Handler, start: bytes, byte: bytes) -> None:
    """One byte at a time, so that no timeout between bytes ever comes."""
    h.close_connection = True
    with suppress(ConnectionError):  # the client has enough
        h.wfile.write(start)
        for _ in range(400):
            h.wfile.write(byte)
            time.sleep(0.05)


def whole_raw(h: Handler, data: bytes) -> None:
    """These bytes, whatever they are."""
    h.wfile.write(data)
    h.close_connection = True


def endless(h: Handler) -> None:
    """As much as is taken."""
    h.close_connection = True
    with suppress(ConnectionError):
        h.wfile.write(b"HTTP/1.1 200 X\r\n\r\n")
        for _ in range(4000):
            h.wfile.write(bytes(1 << 16))


def install(hub: Hub, some: list[Case]) -> None:
    """Have a hub serve them."""
    by_repo = {case.repo: case for case in some}
    for case in some:
        hub.repositories[case.repo] = Repository({FILE: tiny_gguf(SIZE)})

    def hostile(h: BaseHTTPRequestHandler, path: str) -> bool:
        match = re.match(r"(?:/api/models|/cdn)?/(org/[^/]+)/?(.*)", path)
        case = by_repo.get(match[1]) if match else None
        if case is None:
            return False
        if "/api/" in path:
            value: object = info(case.repo, hub.repositories[case.repo])
            if case.listing is not None:
                changed = case.listing(value)  # type: ignore[arg-type]
                value = value if changed is None else changed
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            if case.send_listing is not None:
                case.send_listing(h, body)
            else:
                whole(h, body)
            return True
        if case.send_file is None:
            return False
        case.send_file(h, hub.repositories[case.repo].files[FILE])
        return True

    hub.hostile = hostile
