"""What an answer is made of, in the order in which it comes: what `runtime/chat/tool_calls` reads
in it, and what the engine tells beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ...runtime.chat.replies import Logprob
from ...runtime.chat.tool_calls import Event as ParsedEvent
from ...runtime.serving.protocol import Done, Progress


@dataclass(frozen=True)
class Logprobs:
    """The log-probabilities of the tokens of the events that follow."""

    tokens: list[Logprob]


Event: TypeAlias = Progress | Logprobs | ParsedEvent | Done
