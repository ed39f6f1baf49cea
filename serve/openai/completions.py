"""/v1/completions: texts are continued as they are, without a chat template."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.serving.prompt import Prompt, Text
from ..answers.asking import Ask, repeat
from ..answers.fields import reading_of, sampling_of, stops_of, tokens_of
from ..answers.inputs import Given, check_no_suffix, inputs_of
from ..service import Service
from ..wire.errors import ApiError, invalid
from .choices import response
from .requests import MOST_ANSWERS, form_of, n_of, top_of
from .types import CompletionRequest

_MAX_TOKENS = 16
"""OpenAI's limit where a request has none."""


async def completions(service: Service, body: CompletionRequest, request: Request) -> Response:
    """Continue texts."""
    service.model_called(body.model)
    n = n_of(body.n)
    check_no_suffix(body.suffix)
    if (body.best_of or n) > n:
        raise invalid("best_of", body.best_of, f"at most n, {n}: all answers are returned")
    asks = [one for prompt in _prompts(body.prompt) for one in repeat(_ask(body, prompt), n)]
    if len(asks) > MOST_ANSWERS:
        raise ApiError(400, f"prompt × n is {len(asks)}, expected at most {MOST_ANSWERS}", "prompt")
    return await response(service, body, request, asks, n, is_chat=False)


def _prompts(given: Given | None) -> list[Prompt]:
    inputs = inputs_of(given if given is not None else [], "prompt")
    return [Text(one, special=True) if isinstance(one, str) else one for one in inputs]


def _ask(body: CompletionRequest, prompt: Prompt) -> Ask:
    if body.echo and body.logprobs is not None:
        message = "echo with logprobs: a prompt's tokens have no log probabilities here; omit one"
        raise ApiError(400, message, "echo")
    limit = body.max_tokens if body.max_tokens is not None else _MAX_TOKENS
    return Ask(
        prompt,
        tokens_of(limit, "max_tokens"),
        sampling_of(body),
        stops_of(body.stop),
        form_of(body, body.response_format),
        reading_of(body),
        n_top=None if body.logprobs is None else top_of(body.logprobs, "logprobs"),
        ignore_eos=bool(body.ignore_eos),
        echo=bool(body.echo),
        lens=bool(body.lens),
    )
