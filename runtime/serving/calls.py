"""Requests that the engine has not answered to the end, as the server sees them."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from ...system.errors import KvarnError
from .flags import SLOTS, Flags
from .protocol import Digests, Done, Numbered, Packs, Pieces, Progress, Refused, Rendered, Vectors

M = TypeVar("M", bound=msgspec.Struct)

MOST_UNREAD = 256
"""Messages of an answer that nobody has read, before the engine pauses it."""
FEW_UNREAD = 64
"""The engine goes on with it when so many are left."""

_LAST = (Done, Refused, Rendered, Digests, Vectors, Packs)


class RequestRefused(KvarnError):
    """The engine refused a request, or died. refused: why."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class Call:
    """One request: what has come for it and was not read yet."""

    def __init__(self, id: int, slot: int, flags: Flags) -> None:
        self.id, self.slot, self._flags = id, slot, flags
        self._unread: deque[msgspec.Struct] = deque()
        self._arrived = asyncio.Event()
        self._is_paused = False

    async def next(self) -> msgspec.Struct:
        """The next message; raises `RequestRefused`."""
        while not self._unread:
            self._arrived.clear()
            await self._arrived.wait()
        message = self._unread.popleft()
        if self._is_paused and len(self._unread) <= FEW_UNREAD:
            self._is_paused = False
            self._flags.pause(self.slot, False)
        if isinstance(message, Refused):
            raise RequestRefused(message)
        return message

    async def answer(self, kind: type[M]) -> M:
        """The message that ends it, which is of this type."""
        message = await self.next()
        while isinstance(message, Progress):
            message = await self.next()
        assert isinstance(message, kind)
        return message

    async def messages(self) -> AsyncIterator[Progress | Pieces | Done]:
        """All messages up to `Done`."""
        while True:
            message = await self.next()
            assert isinstance(message, Progress | Pieces | Done)
            yield message
            if isinstance(message, Done):
                return

    def push(self, message: msgspec.Struct) -> None:
        self._unread.append(message)
        self._arrived.set()
        if not self._is_paused and len(self._unread) >= MOST_UNREAD:
            self._is_paused = True
            self._flags.pause(self.slot, True)


class Calls:
    """All requests in flight, by their numbers."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._ids = itertools.count(1)
        self._slots = deque(range(SLOTS))
        self._running: dict[int, tuple[int, Call | None]] = {}
        """Number → slot, and the call unless nobody waits for it any more."""

    @contextmanager
    def open(self) -> Iterator[Call]:
        """A call; the engine ends it when the block is left before its last message has come."""
        id = next(self._ids)
        if not self._slots:
            raise RequestRefused(Refused(id, "busy", f"{SLOTS} requests are running: try later"))
        slot = self._slots.popleft()
        self._flags.clear(slot)
        call = Call(id, slot, self._flags)
        self._running[id] = slot, call
        try:
            yield call
        finally:
            if id in self._running:
                self._running[id] = slot, None
                self._flags.end(slot)

    def deliver(self, message: Numbered) -> None:
        """Give a message of the engine to the call that it answers."""
        id = message.id
        if id not in self._running:
            return
        slot, call = self._running[id]
        if isinstance(message, _LAST):
            del self._running[id]
            self._slots.append(slot)
        if call is not None:
            call.push(message)

    def fail(self, reason: str) -> None:
        """The engine is gone: no other message comes."""
        for id in list(self._running):
            self.deliver(Refused(id, "engine", reason))

    def __len__(self) -> int:
        return len(self._running)
