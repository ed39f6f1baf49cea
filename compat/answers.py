"""One answer, and the dictionaries in which llama-cpp-python tells it, whole or in chunks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..runtime.chat import replies
from ..runtime.chat.replies import Choice, Gathered, Logprob, Reply
from ..runtime.chat.tool_calls import Event, Parser, Plain
from ..runtime.sampling import Constraint, Sampler
from .arguments import RANDOM_SEEDS, check, refusal

if TYPE_CHECKING:
    from ..runtime.context.generation import Generation

Response = Reply | Iterator[Reply]
_ROLES = {"developer": "system", "function": "tool"}
_SAMPLING = {one.name: one.name for one in fields(Sampler) if one.name != "n_probs"} | {
    "temperature": "temp",
    "mirostat_mode": "mirostat",
    "grammar": "constraint",
}
"""Argument of a request → option of `Sampler`."""


@dataclass
class Answer:
    """What follows a prompt, and how it is made.

    max_tokens: None: as many as fit. model: what the response calls it. before: text in front of
    the answer, the prompt where it is echoed. parser: finds calls and reasoning in a chat's.
    finish: why it ended; None until it has. n_tokens: that were generated.
    """

    sampler: Sampler
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    echo: bool
    choice: Choice
    model: str
    before: str = ""
    parser: Parser = field(default_factory=Plain)
    said: Gathered = field(default_factory=Gathered)
    finish: str | None = None
    n_tokens: int = 0

    @classmethod
    def of(cls, call: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Answer:
        """The answer to these arguments of the method `call`. defaults: options of `Sampler`.
        Raises `CompatError` for arguments that kvarn does not have, and for values that are none.
        """
        left = {name: value for name, value in given.items() if value is not None}
        sampling = {_SAMPLING[name]: left.pop(name) for name in _SAMPLING.keys() & left}
        limit, stop = int(left.pop("max_tokens", 0)), left.pop("stop", ())
        top, n_top = left.pop("logprobs", False), left.pop("top_logprobs", 0)
        stream, echo, model = (left.pop(name, None) for name in ("stream", "echo", "model"))
        check(call, left)
        if not isinstance(grammar := sampling.get("constraint"), Constraint | None):
            raise refusal(call, "grammar", grammar, "a LlamaGrammar")
        if sampling.get("seed") in RANDOM_SEEDS:
            sampling.pop("seed", None)
        if bias := sampling.get("logit_bias"):
            sampling["logit_bias"] = {int(token): value for token, value in bias.items()}
        n_top = None if top is False else n_top if top is True else top
        sampler = Sampler(**{**defaults, **sampling, "n_probs": n_top or 0})
        choice = Choice(call == "create_chat_completion", n_top)
        stops, most = (stop,) if isinstance(stop, str) else tuple(stop), max(limit, 0) or None
        return cls(sampler, most, stops, bool(stream), bool(echo), choice, model)

    def response(self, n_prompt: int, start: Callable[[], Generation]) -> Response:
        """The response to a prompt of so many tokens, in chunks if the request wants that. start:
        begins to generate, when the response is read."""
        head = replies.head_of(self.model, is_chat=self.choice.is_chat, stream=self.stream)
        chunks = ({**head, "choices": [choice]} for choice in self._choices(start))
        if self.stream:
            return chunks
        [whole] = chunks
        return {**whole, "usage": replies.usage_of(n_prompt, self.n_tokens)}

    def _choices(self, start: Callable[[], Generation]) -> Iterator[Reply]:
        """The choice of each chunk, or a single one that says all."""
        if self.stream and self.choice.is_chat:
            yield self.choice.chunk({"role": "assistant"})
        generation = start()
        if self.stream and self.before:
            yield self._echoed(self.choice.chunk({"content": self.before}))
        for event in self._events(generation):
            self.said.add(event)
            if self.stream and (delta := replies.delta_of(event)) is not None:
                yield self.choice.chunk(delta)
        if self.stream:
            yield self.choice.chunk({}, self.finish)
            return
        self.said.text = self.before + self.said.text
        whole = self.choice.whole(self.said.reply(), self.finish)
        yield self._echoed(whole) if self.before else whole

    def _echoed(self, choice: Reply) -> Reply:
        """A choice that begins with the prompt: nothing is before its first token."""
        if (lists := choice["logprobs"]) and lists["tokens"]:
            lists["token_logprobs"][0] = lists["top_logprobs"][0] = None
        return choice

    def _events(self, generation: Generation) -> Iterator[Event]:
        """The answer as it is generated. Tokens of a stop text have no log probabilities."""
        parser, waiting = self.parser, list[Logprob]()
        text = generation.text(parser.special)
        for token in generation.ids():
            if self.choice.n_top is not None:
                waiting.append(Logprob.of(generation, token))
            if piece := text.push(token):
                self.choice.waiting += waiting
                waiting.clear()
                yield from parser.push(piece)
            if text.stop:
                break
        else:
            self.choice.waiting += waiting
        yield from [*parser.push(text.flush()), *parser.finish()]
        self.n_tokens, is_cut = generation.n_tokens, generation.finish in ("length", "context")
        self.finish = "length" if is_cut else "tool_calls" if self.said.calls else "stop"


def message_of(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """One of OpenAI's messages as templates take it. Raises `CompatError` for images."""
    content = given.get("content") or ""
    if not isinstance(content, str):
        if other := next((part for part in content if part.get("type") != "text"), None):
            raise refusal(
                "create_chat_completion", f"{path}.content.type", other.get("type"), "text"
            )
        content = "\n".join(part["text"] for part in content)
    functions = [(one.get("id", ""), one["function"]) for one in given.get("tool_calls") or ()]
    calls = [replies.call_of(id, one["name"], one.get("arguments")) for id, one in functions]
    role = _ROLES.get(given["role"], given["role"])
    return {**given, "role": role, "content": content, "tool_calls": calls or None}


def form_of(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """What an answer must match, of OpenAI's `response_format`. Raises `CompatError`."""
    asked = response_format or {"type": "text"}
    schema = asked.get("schema") or asked.get("json_schema", {}).get("schema")
    kind = asked.get("type")
    if schema is not None and kind in ("json_object", "json_schema"):
        return Constraint("json_schema", json.dumps(schema))
    if kind not in ("text", "json_object"):
        types = "the type text, json_object, or json_schema with its schema"
        raise refusal("create_chat_completion", "response_format", dict(asked), types)
    return Constraint(kind) if kind == "json_object" else None
