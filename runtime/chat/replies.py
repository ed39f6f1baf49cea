"""What an answer says, gathered from its events, and OpenAI's forms of it.

Imports neither NumPy nor msgspec: the HTTP process tells answers so, and `compat`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .tool_calls import CallArguments, CallBegins, ReasoningPiece, TextPiece
from .tool_calls.json_text import parsed

if TYPE_CHECKING:
    from ...ops.arrays import F32
    from ..context.generation import Generation
    from ..sampling.state import SamplerState
    from ..tokenizer import Tokenizer

Reply = dict[str, Any]
_LEAST = -1e30
"""In the place of log 0, which JSON has not."""


@dataclass
class Call:
    """A tool call; arguments is JSON text of an object."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class PartialAnswer:
    """An answer so far: its text, its reasoning and its calls."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, event: object) -> None:
        """Go on with an event of `tool_calls`; others say nothing."""
        match event:
            case TextPiece(text):
                self.text += text
            case ReasoningPiece(text):
                self.reasoning += text
            case CallBegins(_, id, name):
                self.calls.append(Call(id, name))
            case CallArguments(index, piece):
                self.calls[index].arguments += piece

    def message(self) -> Reply:
        """The answer as a message that templates take."""
        calls = [call_of(one.id, one.name, one.arguments) for one in self.calls]
        return answer(self.text, self.reasoning, calls)

    def reply(self) -> Reply:
        """The answer as a message that clients get: arguments are text."""
        message = self.message()
        if self.calls:
            calls = [tool_call(call.id, call.name, call.arguments or "{}") for call in self.calls]
            message |= {"content": self.text or None, "tool_calls": calls}
        return message


@dataclass(frozen=True)
class Logprob:
    """One token with its log probability, and the most likely ones in its place. logprob: None for
    one with nothing before it."""

    token: int
    piece: bytes
    logprob: float | None
    top: list[tuple[int, bytes, float]] = field(default_factory=list)

    @classmethod
    def of(cls, generation: Generation, token: int) -> Logprob:
        """The log-probabilities of the token that a generation has just sampled, and of
        `Sampler.n_probs` others."""
        context = generation.context
        return cls.at(generation.sampler, context.model.tokenizer, context.logits, token)

    @classmethod
    def at(cls, sampler: SamplerState, tokenizer: Tokenizer, logits: F32, token: int) -> Logprob:
        """The same of a token where these are the logits."""
        of, piece = sampler.logprobs(logits, token), tokenizer.piece
        top = [(other, piece(other), logprob) for other, logprob in of.top]
        return cls(token, piece(token), of.logprob, top)


def head_of(model: str, *, is_chat: bool, stream: bool) -> Reply:
    """The fields of a response that all its chunks share."""
    kind, prefix = "text_completion", "cmpl"
    if is_chat:
        kind, prefix = f"chat.completion{'.chunk' if stream else ''}", "chatcmpl"
    id = f"{prefix}-{uuid.uuid4().hex}"
    return {"id": id, "object": kind, "created": int(time.time()), "model": model}


def usage_of(n_prompt: int, n_generated: int) -> Reply:
    """Tokens of a response."""
    n_total = n_prompt + n_generated
    return {"prompt_tokens": n_prompt, "completion_tokens": n_generated, "total_tokens": n_total}


def answer(text: str, reasoning: str | None, calls: Sequence[Reply]) -> Reply:
    """An answer as a message that templates take, with calls of `call_of`."""
    message: Reply = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def tool_call(id: str, name: str, arguments: Any) -> Reply:
    """A call of a tool."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call_of(id: str, name: str, arguments: str | Reply | None) -> Reply:
    """A call of an earlier answer, as `PartialAnswer.message` has it."""
    return tool_call(id, name, arguments_of(arguments))


def arguments_of(text: str | Reply | None) -> Reply:
    """The arguments of a call as templates take them, of their text or as they are. A call that was
    cut off has a text that is no object: models see it as it stands."""
    if isinstance(text, dict):
        return text
    try:
        given = parsed(text or "{}")
    except (ValueError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {"arguments": text}


def delta_of(event: object) -> Reply | None:
    """What an event adds to a chat's answer, for a chunk of it; None: nothing."""
    match event:
        case TextPiece(text):
            return {"content": text}
        case ReasoningPiece(text):
            return {"reasoning_content": text}
        case CallBegins(index, id, name):
            return {"tool_calls": [{"index": index, **tool_call(id, name, "")}]}
        case CallArguments(index, piece):
            return {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
    return None


@dataclass
class Choice:
    """Choice `index` of a response, told whole or in chunks: a chat's, or a completion's.

    n_top: log probabilities of each token and of so many others; None: none. waiting: the tokens
    that the next chunk tells. n_told: characters before those, the prompt's of a
    completion among them.
    """

    is_chat: bool
    n_top: int | None
    index: int = 0
    n_told: int = 0
    waiting: list[Logprob] = field(default_factory=list)

    def chunk(self, delta: Reply, finish: str | None = None) -> Reply:
        """The next chunk; finish: why the answer ends with it."""
        has_logprobs = not self.is_chat or bool(self.waiting)
        return self._choice("delta", delta, finish, has_logprobs)

    def whole(self, message: Reply, finish: str | None) -> Reply:
        """All of it."""
        return self._choice("message", message, finish, has_logprobs=True)

    def _choice(self, kind: str, content: Reply, finish: str | None, has_logprobs: bool) -> Reply:
        form = {kind: content} if self.is_chat else {"text": content.get("content") or ""}
        tokens, self.waiting, logprobs = self.waiting, [], None
        if self.n_top is not None and has_logprobs:
            of = _chat_logprobs if self.is_chat else self._lists
            logprobs = of(tokens, self.n_top)
        return {"index": self.index, **form, "logprobs": logprobs, "finish_reason": finish}

    def _lists(self, tokens: Sequence[Logprob], n_top: int) -> Reply:
        """The older form: lists side by side, and texts → log probabilities."""
        texts = [spelt(one.piece) for one in tokens]
        offsets = list(accumulate(map(len, texts), initial=self.n_told))
        self.n_told = offsets.pop()
        logprobs = [_finite(one.logprob) for one in tokens]
        top = [{spelt(b): _finite(p) for _, b, p in one.top[:n_top]} for one in tokens]
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": [None if p is None else most for p, most in zip(logprobs, top)],
            "text_offset": offsets,
        }


def _chat_logprobs(tokens: Sequence[Logprob], n_top: int) -> Reply:
    content = [
        {
            **_one(token.piece, token.logprob),
            "top_logprobs": [_one(piece, logprob) for _, piece, logprob in token.top[:n_top]],
        }
        for token in tokens
    ]
    return {"content": content}


def _one(piece: bytes, logprob: float | None) -> Reply:
    return {"token": spelt(piece), "logprob": _finite(logprob), "bytes": list(piece)}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST)


def embeddings(vectors: Sequence[Any], n_tokens: int, model: str) -> Reply:
    """Vectors of texts of so many tokens in all."""
    data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(vectors)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def spelt(piece: bytes) -> str:
    """A token's bytes as text."""
    return piece.decode("utf-8", "replace")
