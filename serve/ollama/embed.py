"""/api/embed and the older /api/embeddings: vectors of texts."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from ..answers.embedding import embed_texts
from ..service import Service
from ..wire.encoding import json_response
from .requests import served
from .types import EmbeddingsRequest, EmbedRequest


async def embed(service: Service, body: EmbedRequest, request: Request) -> Response:
    """A vector for each text, of which the end is cut where it is too long, unless `truncate` is
    false."""
    started = time.monotonic()
    served(service, body)
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    if not texts:
        return json_response({"model": body.model, "embeddings": []})
    answer = await embed_texts(service, texts, body.dimensions, body.truncate is not False)
    return json_response(
        {
            "model": body.model,
            "embeddings": answer.numbers(),
            "total_duration": int(1e9 * (time.monotonic() - started)),
            "load_duration": 0,
            "prompt_eval_count": answer.n_tokens,
        }
    )


async def embeddings(service: Service, body: EmbeddingsRequest, request: Request) -> Response:
    """A vector for one text."""
    served(service, body)
    answer = await embed_texts(service, [body.prompt or ""], None)
    return json_response({"embedding": answer.numbers()[0]})
