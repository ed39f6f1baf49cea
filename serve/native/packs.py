"""/packs: documents that were read, which requests name by `pack`.

Reading tells its progress as events, each with JSON: {"done", "total", "cached"} in tokens, in the
end {"pack": …} or {"error": …}; with `"stream": false` only the last is answered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.serving.protocol import Done, Pieces, Progress
from ..answers.fields import Read, reading_of
from ..openai.usage import last_words
from ..service import Service
from ..wire.encoding import event, json_response
from ..wire.errors import ApiError, invalid
from ..wire.streams import EVENTS, Stream, close, with_beats, with_last_words

_MOST_NAME = 100
Step = Progress | Pieces | Done


class PackRequest(Read, kw_only=True):
    """A document: its name, and its text. Read as the words of `Read` say, but after no pack."""

    name: str
    text: str
    stream: bool = True


async def packs(service: Service, body: None, request: Request) -> Response:
    """The documents that requests may name."""
    service.ready()
    return json_response({"packs": msgspec.to_builtins(await service.engine.packs())})


async def read_pack(service: Service, body: PackRequest, request: Request) -> Response:
    """Read a document."""
    service.ready()
    name = body.name
    if not 0 < len(name) <= _MOST_NAME or not name.isprintable() or "/" in name or name[0] == ".":
        expected = f"1 to {_MOST_NAME} printable characters without / and not beginning with ."
        raise invalid("name", name, expected)
    if not body.text:
        raise invalid("text", "", "a text that is not empty")
    if body.pack:
        raise ApiError(400, "a document is read after no pack: omit pack", "pack")
    steps = service.engine.read_pack(name, body.text, reading_of(body))
    beats = with_beats(steps, service.settings.limits.first_byte_seconds)
    try:
        first = await anext(beats)
    except BaseException:
        await close(beats)
        raise
    if body.stream:
        return Stream(with_last_words(service, _events(name, first, beats), last_words), EVENTS)
    async for step in beats:
        if isinstance(step, Done):
            return json_response(_end(name, step))
    raise ApiError(503, "reading has ended too early: try again")


async def remove_pack(service: Service, body: None, request: Request) -> Response:
    """Remove a document; those that are left."""
    service.ready()
    left = await service.engine.remove_pack(request.path_params["name"])
    return json_response({"packs": msgspec.to_builtins(left)})


async def _events(
    name: str, first: Step | None, steps: AsyncIterator[Step | None]
) -> AsyncIterator[bytes]:
    try:
        yield _event(name, first)
        async for step in steps:
            yield _event(name, step)
    finally:
        await close(steps)


def _event(name: str, step: Step | None) -> bytes:
    if isinstance(step, Progress):
        return event({"done": step.done, "total": step.total, "cached": step.cached}, "progress")
    return event(_end(name, step), "done") if isinstance(step, Done) else b": waiting\n\n"


def _end(name: str, done: Done) -> dict[str, Any]:
    if done.finish == "cancelled":
        raise ApiError(503, "reading was ended before its end: send it again, to go on with it")
    return {"pack": {"name": name, "n_tokens": done.n_prompt}, "seconds": done.read_seconds}
