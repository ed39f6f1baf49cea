"""/v1/responses: a conversation is answered, at once or as a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....runtime.serving.protocol import Done, Progress
from ...answers.answering import Numbered, begin
from ...answers.asking import Ask
from ...answers.collecting import WholeAnswer
from ...answers.fields import reading_of, sampling_of, stops_of, tokens_of
from ...service import Service, model_id
from ...wire.encoding import WAITING, json_response, read_so_far
from ...wire.encoding import event as sse
from ...wire.errors import ApiError
from ...wire.streams import EVENTS, Stream, with_error_end
from ..requests import form_of
from .items import Items
from .requests import conversation
from .tools import Spaces, spaces_of
from .types import ResponsesRequest


async def responses(service: Service, body: ResponsesRequest, request: Request) -> Response:
    """Answer a conversation."""
    facts = service.model_called(body.model)
    prompt, tools = conversation(service, body)
    wanted = body.text.format if body.text else None
    ask = Ask(
        prompt,
        tokens_of(body.max_output_tokens, "max_output_tokens"),
        sampling_of(body),
        stops_of(body.stop),
        tools.beside(form_of(body, wanted)),
        reading_of(body),
        tools=tools,
    )
    answer = _Answer(_head(body, model_id(facts)), spaces_of(body.tools))
    events = await begin(service, request, [ask])
    if body.stream:
        chunks = with_error_end(service, answer.chunks(events), answer.error_end)
        return Stream(chunks, EVENTS)
    async for _ in answer.chunks(events):
        pass
    return json_response(answer.response())


def _head(body: ResponsesRequest, model: str) -> dict[str, Any]:
    """The fields that do not change, among them those of the request."""
    choice: Any = body.tool_choice or "auto"
    if not isinstance(choice, str):
        choice = {"type": "function", "name": choice.name}
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "instructions": body.instructions,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_output_tokens,
        "tool_choice": choice,
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in body.tools or ()
            if tool.type == "function"
        ],
        "store": False,
    }


class _Answer:
    """A response as it grows, and the events of its stream."""

    def __init__(self, head: dict[str, Any], spaces: Spaces) -> None:
        self._head = head
        self._items, self._whole = Items(spaces), WholeAnswer()
        self._n_told = 0
        self._error: ApiError | None = None

    async def chunks(self, events: AsyncIterator[Numbered | None]) -> AsyncIterator[bytes]:
        """The stream."""
        for name in ("created", "in_progress"):
            yield self._event(name, {"response": self.response()})
        async for numbered in events:
            event = None if numbered is None else numbered[1]
            if event is None:
                yield WAITING
                continue
            self._whole.add(event)
            if isinstance(event, Progress):
                yield read_so_far(event.done, event.total)
            elif isinstance(event, Done):
                is_whole = self._whole.end != "length"
                for name, fields in self._items.end("completed" if is_whole else "incomplete"):
                    yield self._event(name, fields)
                yield self._event(self._status, {"response": self.response()})
            else:
                for name, fields in self._items.events_of(event):
                    yield self._event(name, fields)

    def error_end(self, error: ApiError) -> bytes:
        """The end of a stream that an error ends."""
        self._error = error
        return self._event("failed", {"response": self.response()})

    def response(self) -> dict[str, Any]:
        """The response so far."""
        status, usage = self._status, None
        if (done := self._whole.done) is not None:
            usage = {
                "input_tokens": done.n_prompt,
                "input_tokens_details": {"cached_tokens": done.n_cached, "cache_write_tokens": 0},
                "output_tokens": done.n_generated,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": done.n_prompt + done.n_generated,
            }
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        error = self._error and {"code": "server_error", "message": str(self._error)}
        return {
            **self._head,
            "status": status,
            "output": self._items.output,
            "usage": usage,
            "error": error,
            "incomplete_details": reason,
        }

    @property
    def _status(self) -> str:
        if self._error is not None:
            return "failed"
        if self._whole.done is None:
            return "in_progress"
        return "incomplete" if self._whole.end == "length" else "completed"

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        kind = f"response.{name}"
        number, self._n_told = self._n_told, self._n_told + 1
        return sse({"type": kind, "sequence_number": number, **fields}, kind)
