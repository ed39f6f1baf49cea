"""Serving a shard: connections of the heads of contexts, and of strangers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from ...system.errors import message_of
from ...system.text import one_line
from .addresses import listen
from .frames import ROOM, FrameError, Kind, is_timeout, put, receive, send, text_array
from .greeting import admit
from .links import enable_keepalive
from .shard import Shard

_MOST_HEADS = _MOST_STRANGERS = 64
"""Connections of heads that know the token, and of those who have not said it yet."""
_PAUSE = 1.0
"""Seconds after which connections are taken again where the system has refused one."""
_REST_SECONDS = 60.0
"""In which a message that has begun has to be there, and an answer has to be taken."""


class ShardServer:
    """Answers heads that connect to host:port (port 0: any free one) and know the token.

    say: called with a line about each head that is refused.
    """

    def __init__(
        self, shard: Shard, host: str, port: int, token: str, say: Callable[[str], None]
    ) -> None:
        self._shard, self._token, self._say = shard, token, say
        self._socket, self.address = listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._heads: set[socket.socket] = set()
        self._strangers: dict[socket.socket, str] = {}
        """With their hosts, the oldest first."""
        self._lock, self._closed = threading.Lock(), threading.Event()

    def serve(self) -> None:
        """Answer until `close`."""
        while True:
            try:
                connection, (host, *_) = self._socket.accept()
            except OSError as error:
                if self._closed.wait(_PAUSE):
                    return
                self._say(f"a head could not connect: {message_of(error)}")
                continue
            self._make_room()
            with self._lock:
                self._strangers[connection] = host
            threading.Thread(target=self._serve, args=(connection, host), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._socket.close()
        with self._lock:
            for connection in (*self._strangers, *self._heads):
                _end(connection)

    def _make_room(self) -> None:
        """End the oldest connection of a stranger where there are as many as there may be: those
        who say nothing keep nobody out."""
        with self._lock:
            if len(self._strangers) < _MOST_STRANGERS:
                return
            oldest, host = next(iter(self._strangers.items()))
            del self._strangers[oldest]
            _end(oldest)
        self._say(f"refused {host}: it has said nothing, and others wait")

    def _enter(self, connection: socket.socket) -> str:
        """Count a connection as that of a head; why it cannot be one, or ""."""
        with self._lock:
            if len(self._heads) >= _MOST_HEADS:
                return f"{_MOST_HEADS} heads are connected"
            self._strangers.pop(connection, None)
            self._heads.add(connection)
        return ""

    def _serve(self, connection: socket.socket, host: str) -> None:
        """Answer one head until it goes, or sends what is no question."""
        try:
            enable_keepalive(connection, _REST_SECONDS)  # heads read their own tokens first
            admit(connection, self._token, self._shard.facts, lambda: self._enter(connection))
            room = bytearray(ROOM)
            while True:
                self._answer(connection, room)
        except FrameError as error:
            self._say(f"refused {host}: {error}")
        except OSError as error:
            if is_timeout(error):  # else the head has gone
                self._say(f"refused {host}: it sends or takes too slowly")
        finally:
            with self._lock:
                self._heads.discard(connection)
                self._strangers.pop(connection, None)
                connection.close()

    def _answer(self, connection: socket.socket, room: bytearray) -> None:
        if connection.gettimeout() is not None:
            connection.settimeout(None)  # a head may be silent for hours between questions
        question = receive(connection, rest_seconds=_REST_SECONDS, room=room)
        try:
            answer = self._shard.answer(question)
        except Exception as error:  # whatever it is, the head is to know
            reason = one_line(message_of(error), 500)
            send(connection, Kind.ERROR, [text_array(reason)], _REST_SECONDS)
            raise FrameError(reason) from error
        put(connection, answer, _REST_SECONDS)


def _end(connection: socket.socket) -> None:
    """End a connection that another thread reads, which then closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
