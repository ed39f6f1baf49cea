"""/v1/embeddings: vectors of texts, as numbers or as base64 of their bytes."""

from __future__ import annotations

from base64 import b64encode

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.chat import replies
from ..answers.embedding import embed_texts
from ..answers.inputs import inputs_of
from ..service import Service, model_id
from ..wire.encoding import json_response
from .types import EmbeddingsRequest


async def embeddings(service: Service, body: EmbeddingsRequest, request: Request) -> Response:
    """A vector for each text, or list of ids."""
    facts = service.model_called(body.model)
    answer = await embed_texts(service, inputs_of(body.input, "input"), body.dimensions)
    if body.encoding_format == "base64":
        vectors: list[str] | list[list[float]] = [b64encode(one).decode() for one in answer.vectors]
    else:
        vectors = answer.numbers()
    return json_response(replies.embeddings(vectors, answer.n_tokens, model_id(facts)))
