"""Conversations: chat templates rendered in a sandbox, over a context that reads only new messages.

`ChatTemplate` turns messages into a prompt; `Conversation` reads it into a context and answers.
"""

from .conversation import Conversation as Conversation
from .conversation import ConversationError as ConversationError
from .conversation import Turn as Turn
from .sandbox.process import TemplateError as TemplateError
from .session import Session as Session
from .template import PLAIN_STOP as PLAIN_STOP
from .template import ChatTemplate as ChatTemplate
