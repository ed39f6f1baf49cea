"""OpenAI's API.

types.py        the bodies of requests
requests.py     messages, tools and formats → the engine's terms
chat.py         /v1/chat/completions
completions.py  /v1/completions
choices.py      the response of both
usage.py        what answers cost and read
responses/      /v1/responses, without what the server would have to keep
embeddings.py   /v1/embeddings
models.py       /v1/models
"""

from ..operations import Operation
from .chat import chat
from .completions import completions
from .embeddings import embeddings
from .models import model, models
from .responses import ResponsesRequest, responses
from .types import ChatRequest, CompletionRequest, EmbeddingsRequest

OPERATIONS = (
    Operation("GET", "/v1/models", models, summary="The model that is served"),
    Operation("GET", "/v1/models/{id:path}", model, summary="The model of this name"),
    Operation("POST", "/v1/chat/completions", chat, ChatRequest, "Answer a conversation"),
    Operation("POST", "/v1/responses", responses, ResponsesRequest, "Answer a conversation"),
    Operation("POST", "/v1/completions", completions, CompletionRequest, "Continue texts"),
    Operation("POST", "/v1/embeddings", embeddings, EmbeddingsRequest, "Vectors of texts"),
)
