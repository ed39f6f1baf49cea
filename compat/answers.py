"""One answer, and the dictionaries in which llama-cpp-python tells it, whole or in chunks."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..runtime.chat.replies import (
    Gathered,
    Logprob,
    Reply,
    call_of,
    chat_logprobs,
    completion_logprobs,
    delta_of,
    head_of,
)
from ..runtime.chat.tool_calls import Event, Parser, Plain
from .arguments import CompatError, Request

if TYPE_CHECKING:
    from ..runtime.context.generation import Generation

Told = Reply | Iterator[Reply]
_ROLES = {"developer": "system", "function": "tool"}


@dataclass
class Answer:
    """What follows a prompt of `n_prompt` tokens.

    start: begins to generate it, when the response is read. name: what the response calls the
    model. before: text in front of the answer, the prompt where it is echoed. parser: what finds
    calls and reasoning in it. finish: why it ended; None until it has. logprobs: of tokens that
    were not told yet.
    """

    start: Callable[[], Generation]
    request: Request
    name: str
    n_prompt: int
    before: str = ""
    is_chat: bool = False
    parser: Parser = field(default_factory=Plain)
    finish: str | None = None
    n_tokens: int = 0
    said: Gathered = field(default_factory=Gathered)
    logprobs: list[Logprob] = field(default_factory=list)
    n_told: int = 0

    def told(self) -> Told:
        """The response, in chunks if the request wants that."""
        kind, stream = "text_completion", self.request.stream
        if self.is_chat:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        head = head_of(kind, f"{prefix}-{uuid.uuid4()}", self.name)
        if stream:
            return ({**head, "choices": [choice]} for choice in self._pieces())
        deque(self._events(), 0)
        text = self.before + self.said.text
        choice = self._choice({"message": self.said.reply()} if self.is_chat else {"text": text})
        n = {"prompt_tokens": self.n_prompt, "completion_tokens": self.n_tokens}
        usage = {**n, "total_tokens": self.n_prompt + self.n_tokens}
        return {**head, "choices": [choice], "usage": usage}

    def _pieces(self) -> Iterator[Reply]:
        """The choices of the chunks."""
        if self.is_chat:
            yield self._piece({"role": "assistant"})
        elif self.before:
            yield self._piece({"content": self.before})
        for event in self._events():
            if (delta := delta_of(event)) is not None:
                yield self._piece(delta)
        yield self._piece({})

    def _piece(self, delta: Reply) -> Reply:
        return self._choice(
            {"delta": delta} if self.is_chat else {"text": delta.get("content", "")}
        )

    def _choice(self, said: Reply) -> Reply:
        return {**said, "index": 0, "logprobs": self._logprobs(), "finish_reason": self.finish}

    def _logprobs(self) -> Reply | None:
        """Of the tokens that were not told yet."""
        tokens, self.logprobs, n_top = self.logprobs, [], self.request.n_top
        if n_top is None:
            return None
        if self.is_chat:
            return {"content": chat_logprobs(tokens, n_top)}
        form = completion_logprobs(tokens, n_top, len(self.before) + self.n_told)
        self.n_told += sum(map(len, form["tokens"]))
        return form

    def _events(self) -> Iterator[Event]:
        """The answer as it is generated. Tokens of a stop text have no log probabilities."""
        parser, generation = self.parser, self.start()
        text, waiting = generation.text(parser.special), list[Logprob]()
        for token in generation.ids():
            if self.request.n_top is not None:
                waiting.append(Logprob.of(generation, token))
            if piece := text.push(token):
                self.logprobs += waiting
                waiting.clear()
                yield from self._gathered(parser.push(piece))
            if text.stop:
                break
        else:
            self.logprobs += waiting
        yield from self._gathered([*parser.push(text.flush()), *parser.finish()])
        self.n_tokens, is_cut = generation.n_tokens, generation.finish in ("length", "context")
        self.finish = "length" if is_cut else "tool_calls" if self.said.calls else "stop"

    def _gathered(self, events: Sequence[Event]) -> Iterator[Event]:
        for event in events:
            self.said.add(event)
            yield event


def message_of(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """One of OpenAI's messages as templates take it. Raises `CompatError` for images."""
    content = given.get("content") or ""
    if not isinstance(content, str):
        if other := next((part for part in content if part.get("type") != "text"), None):
            raise CompatError(f"{path} has a part of type {other.get('type')!r:.40}, not text")
        content = "\n".join(part["text"] for part in content)
    functions = [(one.get("id", ""), one["function"]) for one in given.get("tool_calls") or ()]
    calls = [call_of(id, one["name"], one.get("arguments")) for id, one in functions]
    role = _ROLES.get(given["role"], given["role"])
    return {**given, "role": role, "content": content, "tool_calls": calls or None}
