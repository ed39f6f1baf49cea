"""/tokenize, /detokenize and /apply-template, as llama.cpp's server has them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.serving.prompt import Text
from ..answers.inputs import inputs_of
from ..openai.requests import conversation
from ..openai.types import ChatRequest
from ..service import Service
from ..wire.encoding import json_response


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """parse_special: texts of control tokens are control tokens. add_special: the tokens that a
    prompt begins with come first."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]


class TemplateRequest(ChatRequest, kw_only=True):
    """The fields of a request for an answer; only its prompt is rendered."""


async def tokenize(service: Service, body: TokenizeRequest, request: Request) -> Response:
    """The tokens of a text."""
    service.ready()
    if not body.content:
        return json_response({"tokens": []})
    text = Text(body.content, special=body.parse_special)
    rendered = await service.engine.render(text, True, alone=not body.add_special)
    if not body.with_pieces:
        return json_response({"tokens": rendered.ids})
    pairs = zip(rendered.ids, rendered.pieces, strict=True)
    return json_response({"tokens": [{"id": id, "piece": _piece(piece)} for id, piece in pairs]})


async def detokenize(service: Service, body: DetokenizeRequest, request: Request) -> Response:
    """The text of tokens."""
    service.ready()
    if not body.tokens:
        return json_response({"content": ""})
    [ids] = inputs_of([*body.tokens], "tokens")
    rendered = await service.engine.render(ids)  # type: ignore[arg-type]  # ints alone were given
    return json_response({"content": rendered.text})


async def apply_template(service: Service, body: TemplateRequest, request: Request) -> Response:
    """The text of a conversation, as the model reads it."""
    service.model_called(body.model)
    chat, _ = conversation(service, body)
    rendered = await service.engine.render(chat)
    return json_response({"prompt": rendered.text, "n_tokens": rendered.n_tokens})


def _piece(piece: bytes) -> str | list[int]:
    """Text, or bytes that are none by themselves."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
