"""OpenAI's API.

types.py        the bodies of requests
requests.py     messages, tools and formats → the engine's terms
chat.py         /v1/chat/completions
completions.py  /v1/completions
responses.py    /v1/responses, without what the server would have to keep
embeddings.py   /v1/embeddings
models.py       /v1/models
"""

from ..operations import Operation
from .chat import chat
from .models import model, models
from .types import ChatRequest

OPERATIONS = (
    Operation("GET", "/v1/models", models, summary="The model that is served"),
    Operation("GET", "/v1/models/{id:path}", model, summary="The model of this name"),
    Operation("POST", "/v1/chat/completions", chat, ChatRequest, "Answer a conversation"),
)
