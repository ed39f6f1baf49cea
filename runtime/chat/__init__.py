"""Conversations: chat templates rendered in a sandbox, over a context that reads only new messages.

`ChatTemplate` turns messages into a prompt; `Conversation` reads it into a context and answers;
`tool_calls` reads what an answer says. Names are imported on first use: the last needs no NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conversation import Conversation, ConversationError, Turn
    from .sandbox.errors import TemplateError
    from .session import Session
    from .template import PLAIN_STOP, ChatTemplate

_HOMES = {
    "PLAIN_STOP": ".template",
    "ChatTemplate": ".template",
    "Conversation": ".conversation",
    "ConversationError": ".conversation",
    "Session": ".session",
    "TemplateError": ".sandbox.errors",
    "Turn": ".conversation",
}
__all__ = [
    "PLAIN_STOP",
    "ChatTemplate",
    "Conversation",
    "ConversationError",
    "Session",
    "TemplateError",
    "Turn",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
