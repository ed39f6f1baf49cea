"""Chats that were answered, until the server tells the message that it made of each answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .preparing import variables_of

if TYPE_CHECKING:
    from ....ops.arrays import U32
    from ...context.generation import Generation
    from ..library.answers import Answers
    from ..prompt import Chat
    from ..protocol import Remember
    from .preparing import PreparedRequest

_MOST = 64
"""Answers whose messages the server may still tell."""


class _AnsweredChat(NamedTuple):
    """A chat, the ids of its prompt and answer, and the token that ended it; None: a constraint, a
    stop string or a limit did."""

    chat: Chat
    ids: U32
    end_token: int | None


class AnsweredChats:
    """The newest chats by the numbers of their requests. answers: keeps those with a message."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._chats: OrderedDict[int, _AnsweredChat] = OrderedDict()

    def add(self, prepared: PreparedRequest, generation: Generation, ids: Sequence[int]) -> None:
        """Keep the ids of an answer, if it is one to a chat."""
        if prepared.chat is not None:
            kept = np.asarray(ids, np.uint32)
            self._chats[prepared.asked.id] = _AnsweredChat(
                prepared.chat, kept, generation.end_token
            )
            while len(self._chats) > _MOST:
                self._chats.popitem(last=False)

    def remember(self, asked: Remember) -> None:
        """Know the ids of an answer by its message."""
        answered = self._chats.pop(asked.id, None)
        if answered is not None:
            messages, ids = [*answered.chat.messages, asked.message], answered.ids.tolist()
            self._answers.remember(messages, variables_of(answered.chat), ids, answered.end_token)
