"""Ollama's API, which many editors and front ends speak.

types.py     the bodies of requests
requests.py  messages, options and formats → the engine's terms
answers.py   /api/chat and /api/generate, as lines of JSON
models.py    /api/tags, /api/show, /api/ps, /api/version
embed.py     /api/embed and /api/embeddings
"""

from ..operations import Operation
from .answers import chat, generate
from .embed import embed, embeddings
from .models import ps, show, tags, version
from .types import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, ShowRequest

OPERATIONS = (
    Operation("GET", "/api/tags", tags, summary="The model that is served"),
    Operation("GET", "/api/ps", ps, summary="The model that is loaded"),
    Operation("GET", "/api/version", version, summary="The version of the API"),
    Operation("POST", "/api/show", show, ShowRequest, "What the model is"),
    Operation("POST", "/api/chat", chat, ChatRequest, "Answer a conversation"),
    Operation("POST", "/api/generate", generate, GenerateRequest, "Answer or continue a text"),
    Operation("POST", "/api/embed", embed, EmbedRequest, "A vector for each text"),
    Operation("POST", "/api/embeddings", embeddings, EmbeddingsRequest, "A vector for a text"),
)
