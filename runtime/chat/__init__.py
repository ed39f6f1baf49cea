"""Conversations: chat templates rendered in a sandbox, over a context that reads only new messages.

`ChatTemplate` turns messages into a prompt; `Conversation` reads it into a context and answers.
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
