"""The items of an answer, and the events that tell how they grow.

An item opens with `response.output_item.added` and closes with `.done`; between them a message has
one part, which opens and closes in the same way, and deltas. One item is open at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from ....runtime.chat.tool_calls import (
    CallArguments,
    CallBegins,
    CallEnds,
    ReasoningPiece,
    TextPiece,
)
from ...answers.events import Event
from .tools import Spaces

ItemEvents = Iterator[tuple[str, dict[str, Any]]]
"""Names of events with their fields."""
_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}


class Items:
    """The output so far. `events_of`: the events of the stream for one of the answer's. spaces: the
    functions in namespaces."""

    def __init__(self, spaces: Spaces) -> None:
        self.output: list[dict[str, Any]] = []
        self._spaces = spaces
        self._open: dict[str, Any] | None = None

    def events_of(self, event: Event) -> ItemEvents:
        """The stream's messages for an event."""
        match event:
            case TextPiece(text):
                yield from self._write("message", text)
            case ReasoningPiece(text):
                yield from self._write("reasoning", text)
            case CallBegins(_, id, name):
                fields = {"call_id": id, "name": name, "arguments": ""}
                if name in self._spaces:
                    fields["namespace"], fields["name"] = self._spaces[name]
                yield from self._begin("function_call", "fc", fields)
            case CallArguments(_, piece):
                if self._open is not None:
                    self._open["arguments"] += piece
                    yield "function_call_arguments.delta", {**self._at(), "delta": piece}
            case CallEnds():
                yield from self.end()

    def end(self, status: str = "completed") -> ItemEvents:
        """Close the item that is open."""
        item, at = self._open, self._at()
        if item is None:
            return
        if (kind := _PARTS.get(item["type"])) is not None:
            [part] = item["content"]
            yield f"{kind}.done", {**at, **_first(kind), "text": part["text"]}
            yield "content_part.done", {**at, "content_index": 0, "part": part}
        else:
            ended = {"name": item["name"], "arguments": item["arguments"] or "{}"}
            item.update(ended)
            yield "function_call_arguments.done", {**at, **ended}
        item["status"] = status
        self._open = None
        yield "output_item.done", {"output_index": at["output_index"], "item": item}

    def _write(self, kind: str, text: str) -> ItemEvents:
        """Add text to the item of this kind, which opens if it is not."""
        part = _PARTS[kind]
        if self._open is None or self._open["type"] != kind:
            if kind == "message":
                fields: dict[str, Any] = {"role": "assistant", "content": []}
                yield from self._begin(kind, "msg", fields)
            else:
                yield from self._begin(kind, "rs", {"summary": [], "content": []})
            more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "message" else {}
            content = {"type": part, "text": "", **more}
            yield "content_part.added", {**self._at(), "content_index": 0, "part": {**content}}
            self.output[-1]["content"].append(content)
        self.output[-1]["content"][0]["text"] += text
        yield f"{part}.delta", {**self._at(), **_first(part), "delta": text}

    def _begin(self, kind: str, prefix: str, fields: dict[str, Any]) -> ItemEvents:
        yield from self.end()
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress"}
        self._open = {**item, **fields}
        self.output.append(self._open)
        added = {**item, **{key: [] if value == [] else value for key, value in fields.items()}}
        yield "output_item.added", {"output_index": len(self.output) - 1, "item": added}

    def _at(self) -> dict[str, Any]:
        """The fields that locate the open item."""
        item = self._open or {}
        return {"item_id": item.get("id"), "output_index": len(self.output) - 1}


def _first(part: str) -> dict[str, Any]:
    """Fields of events of the only part."""
    return {"content_index": 0, **({"logprobs": []} if part == "output_text" else {})}
