"""One answer, and the forms in which llama-cpp-python tells it: OpenAI's, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .optional import tool_calls

if TYPE_CHECKING:
    from ..runtime.context import Context
    from ..runtime.sampling.state import TokenLogprobs
    from .arguments import Wanted

Reply = dict[str, Any]


class Parser(Protocol):
    """Makes events of an answer's text, which comes in pieces."""

    special: bool

    def push(self, text: str) -> Sequence[Any]: ...
    def finish(self) -> Sequence[Any]: ...


@dataclass
class Answer:
    """The text that follows a prompt; `pieces` generates it. n_prompt: tokens of the prompt."""

    context: Context
    ids: list[int]
    wanted: Wanted
    special: bool = False
    n_tokens: int = 0
    finish: str = "stop"
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def pieces(self) -> Iterator[str]:
        """The text as it is generated; only tokens that the context does not hold are read."""
        context, wanted = self.context, self.wanted
        kept = context.cut_to_prompt(self.ids)
        generation = context.generation(
            self.ids[kept:], wanted.max_tokens, wanted.sampler, wanted.stop
        )
        text = generation.text(self.special)
        for token in generation.ids():
            self.n_tokens = generation.n_tokens
            if wanted.n_top is not None:
                at = generation.sampler.logprobs(context.logits, token, wanted.n_top)
                self.logprobs.append(at)
            if piece := text.push(token):
                yield piece
            if text.stop:
                return
        if piece := text.flush():
            yield piece
        if generation.finish in ("length", "context"):
            self.finish = "length"

    def usage(self) -> Reply:
        """Numbers of tokens."""
        n_prompt = len(self.ids)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": self.n_tokens,
            "total_tokens": n_prompt + self.n_tokens,
        }

    def cut_logprobs(self, n_characters: int) -> None:
        """Drop the tokens behind so much text, such as those of a stop text."""
        lengths = [len(self.spelt(one.id)) for one in self.logprobs]
        n_kept = sum(sum(lengths[:i]) < n_characters for i in range(len(lengths)))
        del self.logprobs[n_kept:]

    def spelt(self, token: int) -> str:
        """A token as text."""
        return self.context.model.tokenizer.piece(token).decode("utf-8", "replace")


def head_of(kind: str, name: str) -> Reply:
    """The fields of a response that all its chunks share."""
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    made = {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time())}
    return {**made, "model": name}


def completion(answer: Answer, head: Reply, before: str) -> Reply:
    """A whole completion. before: text in front of the answer, the prompt where it is echoed."""
    text = before + "".join(answer.pieces())
    logprobs = None
    if answer.wanted.n_top is not None:
        answer.cut_logprobs(len(text) - len(before))
        logprobs = _completion_logprobs(answer, len(before))
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": answer.finish}
    return {**head, "choices": [choice], "usage": answer.usage()}


def completion_chunks(answer: Answer, head: Reply, before: str) -> Iterator[Reply]:
    """A completion in chunks; the last one is empty and says why it ended."""

    def chunk(text: str, finish: str | None = None) -> Reply:
        logprobs = None
        if answer.wanted.n_top is not None:
            logprobs = _completion_logprobs(answer, chunk_at[0])
            answer.logprobs.clear()
        chunk_at[0] += len(text)
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}
        return {**head, "choices": [choice]}

    chunk_at = [0]
    if before:
        yield chunk(before)
    for piece in answer.pieces():
        yield chunk(piece)
    yield chunk("", answer.finish)


def chat(answer: Answer, head: Reply, parser: Parser | None) -> Reply:
    """A whole answer of a chat; calls of tools where a parser finds some."""
    message: Reply = {"role": "assistant", "content": ""}
    for delta in _deltas(answer, parser):
        for name in ("content", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for part in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if "id" in part:
                calls.append({k: part[k] for k in ("id", "type")} | {"function": part["function"]})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    if "tool_calls" in message:
        message["content"] = message["content"] or None
    logprobs = _chat_logprobs(answer) if answer.wanted.n_top is not None else None
    finish = _finish(answer, "tool_calls" in message)
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    return {**head, "choices": [choice], "usage": answer.usage()}


def chat_chunks(answer: Answer, head: Reply, parser: Parser | None) -> Iterator[Reply]:
    """An answer of a chat in chunks."""
    has_calls = False

    def chunk(delta: Reply, finish: str | None = None) -> Reply:
        logprobs = None
        if answer.wanted.n_top is not None:
            logprobs = _chat_logprobs(answer)
            answer.logprobs.clear()
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**head, "choices": [choice]}

    yield chunk({"role": "assistant"})
    for delta in _deltas(answer, parser):
        has_calls = has_calls or "tool_calls" in delta
        yield chunk(delta)
    yield chunk({}, _finish(answer, has_calls))


def _finish(answer: Answer, has_calls: bool) -> str:
    return "tool_calls" if has_calls and answer.finish == "stop" else answer.finish


def _deltas(answer: Answer, parser: Parser | None) -> Iterator[Reply]:
    if parser is None:
        yield from ({"content": piece} for piece in answer.pieces())
        return
    for piece in answer.pieces():
        yield from _told(parser.push(piece))
    yield from _told(parser.finish())


def _told(events: Iterable[Any]) -> Iterator[Reply]:
    for event in events:
        match event:
            case tool_calls.TextPiece(text):
                yield {"content": text}
            case tool_calls.ReasoningPiece(text):
                yield {"reasoning_content": text}
            case tool_calls.CallBegins(index, id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                yield {"tool_calls": [call]}
            case tool_calls.CallArguments(index, piece):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _completion_logprobs(answer: Answer, offset: int) -> Reply:
    tokens = [answer.spelt(one.id) for one in answer.logprobs]
    offsets = [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))]
    return {
        "tokens": tokens,
        "text_offset": offsets,
        "token_logprobs": [one.logprob for one in answer.logprobs],
        "top_logprobs": [{answer.spelt(i): p for i, p in one.top} for one in answer.logprobs],
    }


def _chat_logprobs(answer: Answer) -> Reply:
    def entry(token: int, logprob: float) -> Reply:
        piece = answer.context.model.tokenizer.piece(token)
        return {"token": answer.spelt(token), "logprob": logprob, "bytes": list(piece)}

    return {
        "content": [
            entry(one.id, one.logprob) | {"top_logprobs": [entry(i, p) for i, p in one.top]}
            for one in answer.logprobs
        ]
    }
