"""OpenAI's completions and chats over one context, in its dictionaries and without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ...context.reading.prompt import checked_ids, prompt_ids
from ...sampling import Constraint, Sampler
from ...stops import stop_strings
from .. import lenient
from ..replies import Choice, Logprob, PartialAnswer, Reply, delta_of, head_of, usage_of
from ..template import ChatTemplate
from ..tool_calls import Event, Parser, Plain, TextPiece
from .errors import RequestError, invalid
from .fields import ResponseFormat, form_of, sampling_of
from .messages import Message, messages_of, named_results
from .tools import NamedChoice, Tool, chosen, functions_of

if TYPE_CHECKING:
    from ...context import Context
    from ...context.generation import Generation
    from ...draft import Draft

Response = Reply | Iterator[Reply]
"""A whole response, or its chunks."""


@dataclass
class Completions:
    """Answers prompts and conversations over one context, as OpenAI's servers do.

    What the context has read stays, and only what follows is read of a prompt that begins alike.
    sampler: what fields of a request replace; by default, the model's. name: what responses call
    the model; by default, its own name.

    Fields of all requests: max_tokens (None, or below 1: as many as fit), stop (one text or some),
    stream (the response comes in chunks, as it is generated), model, and the options of `Sampler`,
    where `temp` may be called temperature and `constraint` is called grammar; None: not said.
    Raises `RequestError`, a ValueError, for a field out of its range, and for a prompt that does
    not fit.
    """

    context: Context
    sampler: Sampler | None = None
    draft: Draft | None = None
    name: str = ""

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        echo: bool = False,
        logprobs: int | None = None,
        **fields: Any,
    ) -> Response:
        """The text that follows a prompt, in which control tokens count.

        echo: the prompt stands in front of it. logprobs: log probabilities of each token, and of so
        many others in its place.
        """
        tokenizer = self.context.model.tokenizer
        if isinstance(prompt, str):
            ids, text = prompt_ids(tokenizer, prompt, special=True), prompt
        else:
            ids = checked_ids(prompt)
            text = tokenizer.decode(ids)
        choice = Choice(False, logprobs, n_told=0 if echo else len(text))
        return self._response(_Answer(ids, choice, echoed=text if echo else ""), **fields)

    def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[Tool] | None = None,
        tool_choice: str | NamedChoice | None = None,
        response_format: ResponseFormat | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        grammar: Constraint | None = None,
        **fields: Any,
    ) -> Response:
        """The answer to a conversation, rendered by the model's template or a plain one.

        Raises what rendering raises, and `SamplingError` where a form needs a package.
        """
        model = self.context.model
        template, offered = ChatTemplate.of(model), chosen(functions_of(tools), tool_choice)
        drawing = self.sampler_of({"grammar": grammar})
        form = offered.beside(form_of(response_format) or drawing.constraint)
        given = named_results(messages_of(messages))
        text = lenient.prompt_of(template, given, offered.offered, {})
        parser, form = offered.reader(template.source, text, form)
        choice = Choice(True, (top_logprobs or 0) if logprobs else None)
        answer = _Answer(prompt_ids(model.tokenizer, text), choice, parser, template.stop)
        return self._response(answer, grammar=form and Constraint.of(form), **fields)

    def generation(
        self,
        ids: Sequence[int],
        sampler: Sampler,
        max_tokens: int | None = None,
        stop: Iterable[str] = (),
    ) -> Generation:
        """What follows a prompt, of which only what the context does not hold is read."""
        rest = ids[self.context.cut_to_prompt(ids) :]
        return self.context.generation(rest, max_tokens, sampler, stop, self.draft)

    def sampler_of(self, fields: Mapping[str, Any]) -> Sampler:
        """How a request with these fields draws. Raises `RequestError`."""
        return replace(self.sampler or self.context.model.sampler(), **sampling_of(fields))

    def _response(
        self,
        answer: _Answer,
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] | None = None,
        stream: bool | None = None,
        model: str | None = None,
        **sampling: Any,
    ) -> Response:
        context, ids, choice = self.context, answer.ids, answer.choice
        if not ids:
            raise RequestError("the prompt is empty, expected at least one token")
        if len(ids) >= (most := context.most_tokens):
            # In llama-cpp-python's words, which programs know.
            raise RequestError(f"Requested tokens ({len(ids)}) exceed context window of {most}")
        if (n_top := choice.n_top or 0) < 0:
            raise invalid("top_logprobs" if choice.is_chat else "logprobs", n_top, "0 or more")
        sampler = self.sampler_of({**sampling, "n_probs": n_top})
        limit, stops = max(max_tokens or 0, 0) or None, stop_strings(stop or ()) + answer.stop

        def start() -> Generation:
            if answer.echoed and choice.n_top is not None:
                choice.waiting = prompt_logprobs(context, ids, choice.n_top)
            return self.generation(ids, sampler, limit, stops)

        name = model or self.name or context.model.name
        head = head_of(name, is_chat=choice.is_chat, stream=bool(stream))
        told = ({**head, "choices": [one]} for one in answer.choices(start, bool(stream)))
        return told if stream else {**next(told), "usage": usage_of(len(ids), answer.n_tokens)}


@dataclass
class _Answer:
    """An answer to a prompt. stop: texts of the template at which it ends. echoed: the text of the
    prompt, with which it begins."""

    ids: list[int]
    choice: Choice
    parser: Parser = field(default_factory=Plain)
    stop: tuple[str, ...] = ()
    echoed: str = ""
    answer: PartialAnswer = field(default_factory=PartialAnswer)
    finish: str = ""
    n_tokens: int = 0

    def choices(self, start: Callable[[], Generation], stream: bool) -> Iterator[Reply]:
        """Its chunks as it is generated, or one choice that says all. start: begins, once the first
        is read."""
        choice = self.choice
        if stream and choice.is_chat:
            yield choice.chunk({"role": "assistant"})
        for event in self._events(start()):
            self.answer.add(event)
            if stream and (delta := delta_of(event)) is not None:
                yield choice.chunk(delta)
        end = self.finish
        yield choice.chunk({}, end) if stream else choice.whole(self.answer.reply(), end)

    def _events(self, generation: Generation) -> Iterator[Event]:
        """What it says. Tokens of a stop text have no log probabilities."""
        parser, choice, waiting = self.parser, self.choice, list[Logprob]()
        if self.echoed:
            yield TextPiece(self.echoed)

        def sampled(token: int) -> None:
            if choice.n_top is not None:
                waiting.append(Logprob.of(generation, token))

        for piece in generation.pieces(parser.special, sampled):
            choice.waiting += waiting
            waiting.clear()
            yield from parser.push(piece)
        if generation.finish != "stop":
            choice.waiting += waiting
        yield from parser.finish()
        self.n_tokens, is_cut = generation.n_tokens, generation.finish in ("length", "context")
        self.finish = "length" if is_cut else "tool_calls" if self.answer.calls else "stop"


def prompt_logprobs(context: Context, ids: Sequence[int], n_top: int) -> list[Logprob]:
    """Of a prompt's tokens, each after those before it: of all but what begins texts. The context
    forgets what it holds."""
    tokenizer, state = context.model.tokenizer, Sampler(n_probs=n_top).start()
    context.truncate(0)
    rows = chain.from_iterable(context.read_all_logits(ids[:-1]))
    begins = int(ids[0] == tokenizer.bos_id)
    first = [Logprob(id, tokenizer.piece(id), None) for id in ids[begins : begins + 1]]
    rest = islice(zip(rows, ids[1:]), begins, None)
    return [*first, *(Logprob.at(state, tokenizer, row, id) for row, id in rest)]
