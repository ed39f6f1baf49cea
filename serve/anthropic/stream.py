"""The events of a streamed message.

message_start, for each block content_block_start, …_delta, …_stop, then message_delta and
message_stop; ping where nothing else is to say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from ...runtime.chat.tool_calls import CallArguments, CallBegins, ReasoningPiece, TextPiece
from ...runtime.serving.protocol import Done, Progress
from ..answers.answering import Numbered
from ..answers.collecting import End, WholeAnswer
from ..answers.events import Event
from ..wire.encoding import event as sse
from ..wire.errors import ApiError, shape

REASON: Mapping[End, str] = {
    "stop": "end_turn",
    "stop_text": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
_PING = sse({"type": "ping"}, "ping")


def usage_of(answer: WholeAnswer) -> dict[str, int]:
    """Tokens so far: those that were read, those that did not have to be, those generated."""
    if (done := answer.done) is not None:
        n_prompt, n_cached, n_generated = done.n_prompt, done.n_cached, done.n_generated
    else:
        read = answer.progress or Progress(0, 0, 0, 0)
        n_prompt, n_cached, n_generated = read.total, read.cached, 0
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_read_input_tokens": n_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": n_generated,
    }


def stop_text(answer: WholeAnswer) -> str | None:
    """The text of the request at which the answer ended."""
    return answer.done.stop if answer.done is not None and answer.end == "stop_text" else None


def error_end(error: ApiError) -> bytes:
    """The end of a stream that an error ends."""
    return sse(shape("/v1/messages", error), "error")


async def chunks(
    head: dict[str, Any], events: AsyncIterator[Numbered | None]
) -> AsyncIterator[bytes]:
    """The message, event by event."""
    blocks, answer, has_begun = _Blocks(), WholeAnswer(), False
    async for numbered in events:
        event = None if numbered is None else numbered[1]
        if event is not None:
            answer.add(event)
        if not has_begun:
            # usage of what is read is known with the first progress, if that comes in time
            has_begun = True
            started: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
            message = {**head, **started, "usage": usage_of(answer)}
            yield sse({"type": "message_start", "message": message}, "message_start")
        if event is None or isinstance(event, Progress):
            yield _PING
        else:
            for chunk in blocks.chunks(event):
                yield chunk
        if isinstance(event, Done):
            ends = {"stop_reason": REASON[answer.end], "stop_sequence": stop_text(answer)}
            delta = {"type": "message_delta", "delta": ends, "usage": usage_of(answer)}
            yield sse(delta, "message_delta")
            yield sse({"type": "message_stop"}, "message_stop")


class _Blocks:
    """The blocks of a content as they open and close: one at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""

    def chunks(self, event: Event) -> list[bytes]:
        """The events of the API that this one becomes."""
        match event:
            case TextPiece(text):
                begins = self._begin("text", {"text": ""})
                return [*begins, self._delta("text_delta", "text", text)]
            case ReasoningPiece(text):
                begins = self._begin("thinking", {"thinking": "", "signature": ""})
                return [*begins, self._delta("thinking_delta", "thinking", text)]
            case CallBegins(index, id, name):
                return self._begin("tool_use", {"id": id, "name": name, "input": {}}, str(index))
            case CallArguments(_, piece):
                return [self._delta("input_json_delta", "partial_json", piece)]
            case Done():
                return self._end()
        return []

    def _begin(self, kind: str, fields: dict[str, Any], number: str = "") -> list[bytes]:
        if self._open == kind + number:
            return []
        ended = self._end()
        self._open, self._index = kind + number, self._index + 1
        block = {"type": kind, **fields}
        content = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*ended, sse(content, "content_block_start")]

    def _delta(self, kind: str, name: str, text: str) -> bytes:
        delta = {"type": kind, name: text}
        content = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return sse(content, "content_block_delta")

    def _end(self) -> list[bytes]:
        if not self._open:
            return []
        self._open = ""
        return [sse({"type": "content_block_stop", "index": self._index}, "content_block_stop")]
