"""Answers that are sent while they are made, and the end of what nobody waits for any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..service import Service
from .errors import ApiError, ClientGone

T = TypeVar("T")

HEARTBEAT_SECONDS = 10.0
"""A stream says that it is alive after so many seconds of silence: proxies and clients hang up."""
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"


class Stream(Response):
    """Chunks as they come. When the client is gone their iterator is closed."""

    def __init__(self, chunks: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        try:
            await send_chunks(send, self._chunks)
        finally:
            await close(self._chunks)


async def send_chunks(send: Send, chunks: AsyncIterator[bytes]) -> None:
    """The body of an answer whose head was sent, as it comes."""
    part = {"type": "http.response.body", "more_body": True}
    async for chunk in chunks:
        await send({**part, "body": chunk})
    await send({**part, "body": b"", "more_body": False})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client closes its connection.

    Raises `ClientGone` then. The request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, watcher)


async def with_heartbeats(
    events: AsyncIterator[T], first_seconds: float
) -> AsyncIterator[T | None]:
    """The events, and None for each `HEARTBEAT_SECONDS` without one.

    Raises `ApiError` 503 after `first_seconds` without an event.
    """
    task: asyncio.Future[T] | None = None
    deadline: float | None = time.monotonic() + first_seconds
    try:
        while True:
            task = task or asyncio.ensure_future(anext(events))
            left = HEARTBEAT_SECONDS if deadline is None else deadline - time.monotonic()
            done, _ = await asyncio.wait({task}, timeout=max(0.0, min(left, HEARTBEAT_SECONDS)))
            if done:
                finished, task, deadline = task, None, None
                try:
                    yield finished.result()
                except StopAsyncIteration:
                    return
            elif deadline is not None and time.monotonic() >= deadline:
                raise ApiError(503, f"no answer within {first_seconds:g} seconds: try again later")
            else:
                yield None
    finally:
        if task is not None:
            await _end(task)
        await close(events)


async def with_error_end(
    service: Service, chunks: AsyncIterator[bytes], write: Callable[[ApiError], bytes]
) -> AsyncIterator[bytes]:
    """The chunks of a stream, and the error that ends it, if one does."""
    try:
        async for chunk in chunks:
            yield chunk
    except Exception as error:
        yield write(service.error_of(error))
    finally:
        await close(chunks)


async def close(iterator: AsyncIterator[Any]) -> None:
    """Ends a generator before its time; other iterators need no end."""
    if (aclose := getattr(iterator, "aclose", None)) is not None:
        await aclose()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
