"""Anthropic's API.

types.py     the bodies of requests
requests.py  messages, tools and choices → the engine's terms
messages.py  /v1/messages and /v1/messages/count_tokens
stream.py    the events of a streamed message
"""

from ..operations import Operation
from .messages import count_tokens, messages
from .types import CountRequest, MessagesRequest

OPERATIONS = (
    Operation("POST", "/v1/messages", messages, MessagesRequest, "Answer a conversation"),
    Operation(
        "POST", "/v1/messages/count_tokens", count_tokens, CountRequest, "Tokens of a conversation"
    ),
)
