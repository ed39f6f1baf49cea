"""Whole answers, made of their events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...runtime.chat.replies import Call, Logprob, PartialAnswer
from ...runtime.chat.tool_calls import CallBegins, ReasoningPiece, TextPiece
from ...runtime.serving.protocol import Done, Progress
from .events import Logprobs

End = Literal["stop", "stop_text", "length", "tool_calls"]
"""Why an answer ended: by itself, at a text of the request, at a limit, to have tools called."""


@dataclass
class TextPart:
    """Text or reasoning between other parts of an answer."""

    is_reasoning: bool
    text: str = ""


@dataclass
class WholeAnswer(PartialAnswer):
    """An answer so far. parts: text, reasoning and calls in their order. done: None until it has
    ended."""

    parts: list[TextPart | Call] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    progress: Progress | None = None
    done: Done | None = None

    def add(self, event: object) -> None:
        """Go on with an event."""
        super().add(event)
        match event:
            case TextPiece(text):
                self._append(False, text)
            case ReasoningPiece(text):
                self._append(True, text)
            case CallBegins():
                self.parts.append(self.calls[-1])
            case Logprobs(tokens):
                self.logprobs += tokens
            case Progress():
                self.progress = event
            case Done():
                self.done = event

    def _append(self, is_reasoning: bool, text: str) -> None:
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, TextPart) or last.is_reasoning != is_reasoning:
            last = TextPart(is_reasoning)
            self.parts.append(last)
        last.text += text

    def cut(self, n_generated: int) -> Done:
        """The end of an answer that is not generated any further."""
        read = self.progress or Progress(0, 0, 0, 0)
        self.done = Done(0, "stop", read.total, read.cached, n_generated)
        return self.done

    @property
    def end(self) -> End:
        """Why it ended. One without an end was cut off, as at a limit."""
        done = self.done or Done(0, "cancelled")
        if done.finish in ("length", "context", "cancelled"):
            return "length"
        if self.calls:
            return "tool_calls"
        return "stop_text" if done.finish == "stop" and done.stop else "stop"
