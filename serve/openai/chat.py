"""/v1/chat/completions: a conversation is answered, at once or as a stream."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ..answers.asking import Ask, repeat
from ..answers.fields import reading_of, sampling_of, stops_of, tokens_of
from ..service import Service
from .choices import response
from .requests import conversation, form_of, n_of, top_of
from .types import ChatRequest


async def chat(service: Service, body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    service.model_called(body.model)
    n = n_of(body.n)
    return await response(service, body, request, repeat(_ask(service, body), n), n, is_chat=True)


def _ask(service: Service, body: ChatRequest) -> Ask:
    prompt, tools = conversation(service, body)
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    n_top = top_of(body.top_logprobs, "top_logprobs")
    return Ask(
        prompt,
        tokens_of(getattr(body, limit), limit),
        sampling_of(body),
        stops_of(body.stop),
        tools.beside(form_of(body, body.response_format)),
        reading_of(body),
        n_top=n_top if body.logprobs else None,
        ignore_eos=bool(body.ignore_eos),
        tools=tools,
        lens=bool(body.lens),
    )
