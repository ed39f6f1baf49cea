"""Where the shards of a pack are."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...system.errors import KvarnError, WrongUsage


def parse_address(address: str) -> tuple[str, int]:
    """The two parts of HOST:PORT or [ADDRESS]:PORT; `WrongUsage` for what is none."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the system is asked for it
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if not host or port is None or parts.netloc != address or "@" in address:
        raise WrongUsage(f"{address!r:.100} is no address of a shard: expected HOST:PORT")
    return host, port


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that takes connections at host:port (0: any free one), and its address; `KvarnError`
    where the system refuses that."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shown = f"[{host}]" if ":" in host else host
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        # Python says the address once more, after the reason.
        reason = (error.strerror or str(error)).partition(" (while attempting to bind")[0]
        raise KvarnError(f"cannot listen on {shown}:{port}: {reason}") from error
    return listener, f"{shown}:{listener.getsockname()[1]}"


@dataclass(frozen=True)
class Shards:
    """Where the shards of a pack are, as HOST:PORT each, and the token that they ask for, if any.

    Raises `WrongUsage` for what is no address.
    """

    addresses: Sequence[str]
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.addresses:
            raise WrongUsage("no shards are named: expected HOST:PORT, or some of them")
        for address in self.addresses:
            parse_address(address)
