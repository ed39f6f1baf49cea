"""Listens, and ends in order: `serve.run`."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..runtime.serving.client import EngineClient
from ..system.errors import KvarnError
from ..system.terminal import say
from .app import application
from .service import Service
from .settings import Settings
from .wire.guard import Guard
from .wire.log import Log

App = Callable[[Service], Guard]
_HEAD_SECONDS = 15.0
"""That a client has to send a request's first lines."""
_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)
"""Faults that another port mends; of others the address is the cause."""


class ServeError(KvarnError):
    """The server cannot listen where it was told to."""


class Protocol(H11Protocol):
    """uvicorn's, which tells requests their transport, and closes connections that ask nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}
        self.loop.call_later(_HEAD_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's, which ends with exit code 0 when it is told to, after the streams have ended."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = self._service.is_stopping = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The engine ends its streams while their connections are waited for."""
        seconds = self._service.settings.limits.stop_seconds
        stopping = asyncio.ensure_future(self._service.engine.stop(seconds))
        await super().shutdown(sockets)
        await asyncio.gather(stopping, return_exceptions=True)


def serve(
    settings: Settings,
    engine: EngineClient,
    app: App = application,
    tell: Callable[[str], None] = say,
) -> None:
    """Answers requests until SIGTERM or Ctrl-C. app: makes what answers them; tell: called with a
    line that names the address. Raises `ServeError` where the port is taken."""
    listener = listen(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    tell(f"listening on http://{shown}:{port}; Ctrl-C ends it")
    server(Service(settings, engine, Log(settings.log)), app).run(sockets=[listener])


def server(service: Service, app: App = application) -> Server:
    """The server of all paths, which does not listen yet."""
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app(service),
        http=Protocol,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=64 << 10,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(service.settings.limits.stop_seconds) + 5,
    )
    return Server(config, service)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections: before a model is loaded, and its port known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the protocol is named. Else a body waits for
    # 40 ms, until the client has acknowledged the head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        is_of_port = isinstance(error, OverflowError) or getattr(error, "errno", 0) in _OF_PORTS
        advice = "choose another --port" if is_of_port else "choose another --host"
        raise ServeError(f"cannot listen on {host} port {port}: {reason}; {advice}") from None
    listener.listen(256)
    listener.setblocking(False)
    return listener
