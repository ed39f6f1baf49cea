"""One answer, and the dictionaries in which llama-cpp-python tells it, whole or in chunks."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from ..runtime.chat.replies import (
    Gathered,
    Logprob,
    Reply,
    chat_logprobs,
    completion_logprobs,
    delta_of,
    head_of,
    spelt,
)
from ..runtime.chat.tool_calls import Event, Parser, Plain, TextPiece

if TYPE_CHECKING:
    from ..runtime.context import Context
    from ..runtime.draft import Draft
    from .arguments import Wanted

Told = Reply | Iterator[Reply]


@dataclass
class Answer:
    """What follows a prompt. name: what the response calls the model. finish: why it ended; None
    until it has. logprobs: of tokens that were not told yet."""

    context: Context
    ids: list[int]
    wanted: Wanted
    name: str
    draft: Draft | None = None
    parser: Parser = field(default_factory=Plain)
    finish: str | None = None
    n_tokens: int = 0
    said: Gathered = field(default_factory=Gathered)
    logprobs: list[Logprob] = field(default_factory=list)

    def events(self) -> Iterator[Event]:
        """The answer as it is generated; only tokens that the context does not hold are read."""
        context, wanted, parser = self.context, self.wanted, self.parser
        kept = context.cut_to_prompt(self.ids)
        generation = context.generation(
            self.ids[kept:], wanted.max_tokens, wanted.sampler, wanted.stop, self.draft
        )
        text = generation.text(parser.special)
        for token in generation.ids():
            self.n_tokens = generation.n_tokens
            if wanted.n_top is not None:
                self.logprobs.append(Logprob.of(generation, token))
            yield from self._gathered(parser.push(text.push(token)))
            if text.stop:
                break
        yield from self._gathered(parser.push("" if text.stop else text.flush()))
        yield from self._gathered(parser.finish())
        is_cut = not text.stop and generation.finish in ("length", "context")
        self.finish = "length" if is_cut else "tool_calls" if self.said.calls else "stop"

    def _gathered(self, events: Sequence[Event]) -> Iterator[Event]:
        for event in events:
            self.said.add(event)
            yield event

    def told(
        self, kind: str, prefix: str, pieces: Iterator[Reply], whole: Callable[[], Reply]
    ) -> Told:
        """The response, of its pieces in chunks if the request wants that."""
        head = head_of(kind, f"{prefix}-{uuid.uuid4()}", self.name)

        def response(piece: Reply) -> Reply:
            choice = {**piece, "index": 0, "finish_reason": self.finish}
            return {**head, "choices": [choice]}

        if self.wanted.stream:
            return map(response, pieces)
        made, n_prompt, n = response(whole()), len(self.ids), self.n_tokens
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}
        return {**made, "usage": usage}

    def taken_logprobs(self) -> list[Logprob]:
        """Those that were not told yet."""
        taken, self.logprobs = self.logprobs, []
        return taken


def completion(answer: Answer, before: str) -> Told:
    """before: text in front of the answer, the prompt where it is echoed."""
    n_top = answer.wanted.n_top
    texts = (event.text for event in answer.events() if isinstance(event, TextPiece))

    def piece(text: str, tokens: list[Logprob], offset: int) -> Reply:
        logprobs = None if n_top is None else completion_logprobs(tokens, n_top, offset)
        return {"text": text, "logprobs": logprobs}

    def pieces() -> Iterator[Reply]:
        n = 0
        for text in chain([before] if before else (), texts, [""]):
            yield piece(text, answer.taken_logprobs(), n)
            n += len(text)

    def whole() -> Reply:
        text = "".join(texts)
        tokens = answer.taken_logprobs()
        ends = accumulate(len(spelt(one.piece)) for one in tokens)
        n_kept = sum(end < len(text) for end in ends) + 1  # the others are of a stop text
        return piece(before + text, tokens[:n_kept], len(before))

    return answer.told("text_completion", "cmpl", pieces(), whole)


def chat(answer: Answer) -> Told:
    """An answer of a chat."""
    n_top, deltas = answer.wanted.n_top, filter(None, map(delta_of, answer.events()))

    def piece(key: str, said: Reply) -> Reply:
        tokens, logprobs = answer.taken_logprobs(), None
        if n_top is not None:
            logprobs = {"content": chat_logprobs(tokens, n_top)}
        return {key: said, "logprobs": logprobs}

    def pieces() -> Iterator[Reply]:
        yield piece("delta", {"role": "assistant"})
        yield from (piece("delta", delta) for delta in deltas)
        yield piece("delta", {})

    def whole() -> Reply:
        deque(deltas, 0)
        return piece("message", answer.said.reply())

    kind = "chat.completion.chunk" if answer.wanted.stream else "chat.completion"
    return answer.told(kind, "chatcmpl", pieces(), whole)
