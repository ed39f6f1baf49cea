"""The head's connections to its shards."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from .addresses import parse_address
from .errors import ShardError
from .frames import (
    ROOM,
    FrameError,
    Kind,
    Message,
    Shape,
    heading_of,
    is_timeout,
    put,
    receive,
    text_of,
)
from .greeting import ShardFacts, greet

CONNECT_SECONDS = 5.0
RECONNECT_SECONDS = 5.0
"""In which a shard that is gone has to be there again."""
ANSWER_SECONDS = 60.0
"""In which a shard has to answer."""
T = TypeVar("T")
_PAUSE = 0.1
_ALIVE_SECONDS = 5.0
"""After which the system gives up a shard whose machine has vanished."""


def enable_keepalive(connection: socket.socket, seconds: float) -> None:
    """Send small messages at once, and notice within `seconds` when the other machine vanishes, or
    takes nothing of what is sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = round(seconds * 1000)
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # each system has some of them
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Link:
    """One shard. A question that a lost connection took with it is asked again: answers depend on
    nothing but the question and the pack."""

    def __init__(self, address: str, token: str) -> None:
        self.address, self._place, self._token = address, parse_address(address), token
        self._connection: socket.socket | None = None
        self._question: Message | None = None
        self._room = bytearray(ROOM)
        self.sent = self.received = 0
        """Bytes of arrays."""
        with _NamedErrors(self):
            self._connection, self.facts = self._connect()

    def ask(self, question: Message) -> None:
        """Ask the shard; its answer waits until `answer`."""
        self._question = question
        with _NamedErrors(self):
            try:
                self._send()
            except OSError:
                self._retry(lambda: None)

    def answer(self, *shapes: Shape) -> Message:
        """The answer, of arrays of these types and shapes.

        Raises `ShardError` for anything else, or if no answer comes.
        """
        with _NamedErrors(self):
            try:
                frame = self._receive()
            except OSError as error:
                if is_timeout(error):
                    waited = f"{ANSWER_SECONDS:.0f} seconds"
                    raise FrameError(f"it has not answered for {waited}") from None
                frame = self._retry(self._receive)
        if frame.heading != heading_of(Kind.ANSWER, shapes):
            self.close()
            given = [(array.dtype, array.shape) for array in frame.arrays]
            raise ShardError(
                self.address,
                f"its answer has arrays {_describe(given)}, expected {_describe(shapes)}",
            )
        return frame

    def close(self) -> None:
        """Close the connection; `send` opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self) -> None:
        assert self._question is not None
        if self._connection is None:
            raise ConnectionError("it is closed")
        put(self._connection, self._question)
        self.sent += self._question.n_bytes

    def _receive(self) -> Message:
        if self._connection is None:
            raise ConnectionError("it is closed")
        frame = receive(self._connection, room=self._room)
        if frame.kind is Kind.ERROR and frame.arrays:
            raise FrameError(text_of(frame.arrays[0]))
        if frame.kind is not Kind.ANSWER:
            raise FrameError(f"it sent a message of kind {frame.kind.name}, expected an answer")
        self.received += frame.n_bytes
        return frame

    def _retry(self, then: Callable[[], T]) -> T:
        """The result of `then`, after connecting and asking again; tries as long as the shard may
        take to come back."""
        self.close()
        until = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                self._connection, facts = self._connect()
                if facts != self.facts:
                    raise FrameError("it has come back with other tokens")
                self._send()
                return then()
            except OSError as error:
                self.close()
                if time.monotonic() >= until:
                    reason = error.strerror or str(error)
                    raise FrameError(
                        f"it is gone, and has not come back within {RECONNECT_SECONDS:.0f} seconds "
                        f"({reason}): start it again"
                    ) from error
            time.sleep(_PAUSE)

    def _connect(self) -> tuple[socket.socket, ShardFacts]:
        connection = socket.create_connection(self._place, CONNECT_SECONDS)
        try:
            enable_keepalive(connection, _ALIVE_SECONDS)
            facts = greet(connection, self._token)
            connection.settimeout(ANSWER_SECONDS)
        except BaseException:
            connection.close()
            raise
        return connection, facts


def _describe(shapes: Sequence[Shape]) -> str:
    return ", ".join(f"{dtype} {shape}" for dtype, shape in shapes)


class _NamedErrors:
    """Errors in a block name the shard, and end its connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        self._link.close()
        if isinstance(error, FrameError):
            raise ShardError(self._link.address, str(error)) from error
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise ShardError(self._link.address, f"cannot be reached: {reason}") from error


class Links:
    """The shards of a context, in the order of their tokens, of which the first is token 0.

    Raises `ShardError` for shards that do not belong together or to the pack: `matches` says what
    is wrong with one, or "".
    """

    def __init__(
        self, addresses: Sequence[str], token: str, matches: Callable[[ShardFacts], str]
    ) -> None:
        self._links: list[Link] = []
        try:
            for address in addresses:
                self._links.append(Link(address, token))
            self._links.sort(key=lambda link: link.facts.first)
            self.stop = self._checked(matches)
        except BaseException:
            self.close()
            raise

    def _checked(self, matches: Callable[[ShardFacts], str]) -> int:
        """The first token after those of all shards."""
        stop, before = 0, "the context begins"
        for link in self._links:
            facts = link.facts
            if reason := matches(facts):
                raise ShardError(link.address, reason)
            if facts.first != stop:
                what = "nobody holds those between" if facts.first > stop else "they overlap"
                raise ShardError(
                    link.address,
                    f"it holds tokens from {facts.first:,} on, where {before} at {stop:,}: {what}",
                )
            stop, before = facts.stop, f"those of {link.address} end"
        return stop

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links)

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """A block that asks and takes all answers. After an error in it, all connections are
        closed: nobody waits for the other answers, and none is taken for that of a later
        question."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._links)

    @property
    def n_bytes(self) -> int:
        """Bytes of arrays that were sent and received."""
        return sum(link.sent + link.received for link in self._links)

    def close(self) -> None:
        """Close the connections; they open again when something is asked."""
        for link in self._links:
            link.close()
