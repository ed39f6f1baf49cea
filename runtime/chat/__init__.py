"""Conversations: chat templates rendered in a sandbox, and a history that is read only once.

`ChatTemplate` turns messages into a prompt; `Conversation` keeps a context in step with them.
"""

from .conversation import Conversation, ConversationError, Turn
from .sandbox.errors import TemplateError
from .session import Session
from .template import PLAIN_STOP, ChatTemplate

__all__ = [
    "PLAIN_STOP",
    "ChatTemplate",
    "Conversation",
    "ConversationError",
    "Session",
    "TemplateError",
    "Turn",
]
