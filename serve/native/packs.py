"""/packs: documents that were read, which requests name by `pack`.

Reading tells its progress as events, each with JSON: {"done", "total", "cached"} in tokens, in the
end {"pack": …} or {"error": …}; with `"stream": false` only the last is answered. "notices"
beside "pack" has lines about what of a document has no text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.serving.protocol import Done, Pieces, Progress
from ..answers.fields import reading_of
from ..openai.usage import error_end
from ..service import Service
from ..wire.encoding import WAITING, event, json_response
from ..wire.errors import ApiError, invalid
from ..wire.streams import EVENTS, Stream, close, with_error_end, with_heartbeats
from .documents import PackRequest, UploadedDocument, convert_document

_MOST_NAME = 100
Step = Progress | Pieces | Done


async def packs(service: Service, body: None, request: Request) -> Response:
    """The documents that requests may name."""
    service.ready()
    return json_response({"packs": msgspec.to_builtins(await service.engine.packs())})


async def read_pack(
    service: Service, body: PackRequest | UploadedDocument, request: Request
) -> Response:
    """Read a document."""
    service.ready()
    fields = body.fields if isinstance(body, UploadedDocument) else body
    name, notices = fields.name, []
    read = service.engine.read_pack  # who asks for digests alone is refused before converting
    if not 0 < len(name) <= _MOST_NAME or not name.isprintable() or "/" in name or name[0] == ".":
        expected = f"1 to {_MOST_NAME} printable characters without / and not beginning with ."
        raise invalid("name", name, expected)
    if fields.pack:
        raise ApiError(400, "a document is read after no pack: omit pack", "pack")
    reading = reading_of(fields)
    if isinstance(body, UploadedDocument):
        document = await convert_document(service, body.data, name, body.suffix)
        text, notices = document.text, document.notices
    else:
        text = body.text
    if not text:
        raise invalid("text", "", "a text that is not empty")
    steps = read(name, text, reading)
    beats = with_heartbeats(steps, service.settings.limits.first_byte_seconds)
    try:
        first = await anext(beats)
    except BaseException:
        await close(beats)
        raise
    events = _ReadingEvents(name, notices)
    if fields.stream:
        return Stream(with_error_end(service, _events(events, first, beats), error_end), EVENTS)
    async for step in beats:
        if isinstance(step, Done):
            return json_response(events.end(step))
    raise ApiError(503, "reading has ended too early: try again")


async def remove_pack(service: Service, body: None, request: Request) -> Response:
    """Remove a document; those that are left."""
    service.ready()
    remaining = await service.engine.remove_pack(request.path_params["name"])
    return json_response({"packs": msgspec.to_builtins(remaining)})


class _ReadingEvents(NamedTuple):
    """The events of a document that is read. notices: name its parts that have no text."""

    name: str
    notices: list[str]

    def event(self, step: Step | None) -> bytes:
        """A step as an event."""
        if isinstance(step, Progress):
            counts = {"done": step.done, "total": step.total, "cached": step.cached}
            return event(counts, "progress")
        return event(self.end(step), "done") if isinstance(step, Done) else WAITING

    def end(self, done: Done) -> dict[str, Any]:
        """The last words. Raises `ApiError` 503 for a reading that was ended before."""
        if done.finish == "cancelled":
            raise ApiError(503, "reading was ended before its end: send it again, to go on with it")
        pack = {"name": self.name, "n_tokens": done.n_prompt}
        more = {"notices": self.notices} if self.notices else {}
        return {"pack": pack, "seconds": done.read_seconds, **more}


async def _events(
    events: _ReadingEvents, first: Step | None, steps: AsyncIterator[Step | None]
) -> AsyncIterator[bytes]:
    try:
        yield events.event(first)
        async for step in steps:
            yield events.event(step)
    finally:
        await close(steps)
