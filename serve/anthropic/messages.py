"""/v1/messages: a conversation is answered, at once or as a stream; and its tokens counted."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.chat.replies import Call, arguments_of
from ..answers.answering import begin, complete_answers
from ..answers.asking import Ask
from ..answers.collecting import TextPart, WholeAnswer
from ..answers.fields import reading_of, sampling_of, stops_of, tokens_of
from ..service import Service, model_id
from ..wire.encoding import json_response
from ..wire.errors import invalid
from ..wire.streams import EVENTS, Stream, with_error_end
from .requests import conversation, form_of, tools_of
from .stream import REASON, chunks, error_end, stop_text, usage_of
from .types import CountRequest, MessagesRequest


async def messages(service: Service, body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation."""
    facts = service.model_called(body.model)
    ask = _ask(service, body)
    head = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": body.model or model_id(facts),
    }
    if body.stream:
        events = await begin(service, request, [ask])
        return Stream(with_error_end(service, chunks(head, events), error_end), EVENTS)
    [answer] = await complete_answers(service, request, [ask])
    ends = {
        "content": _blocks(answer),
        "stop_reason": REASON[answer.end],
        "stop_sequence": stop_text(answer),
        "usage": usage_of(answer),
    }
    return json_response({**head, **ends})


async def count_tokens(service: Service, body: CountRequest, request: Request) -> Response:
    """The tokens of a conversation, as it would be read."""
    service.model_called(body.model)
    rendered = await service.engine.render(conversation(body, tools_of(service, body)))
    return json_response({"input_tokens": rendered.n_tokens})


def _ask(service: Service, body: MessagesRequest) -> Ask:
    if body.max_tokens < 1:
        raise invalid("max_tokens", body.max_tokens, "1 or more")
    tools = tools_of(service, body)
    return Ask(
        conversation(body, tools),
        tokens_of(body.max_tokens, "max_tokens"),
        sampling_of(body),
        stops_of(body.stop_sequences, "stop_sequences"),
        tools.beside(form_of(body)),
        reading_of(body),
        tools=tools,
    )


def _blocks(answer: WholeAnswer) -> list[dict[str, Any]]:
    """The content in its order, as a stream has it."""
    return [_block(part) for part in answer.parts]


def _block(part: TextPart | Call) -> dict[str, Any]:
    if isinstance(part, Call):
        arguments = arguments_of(part.arguments)
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
    if part.is_reasoning:
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text}
