"""From messages to what the engine can work on: rendering, tokens, options; nothing computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...system.values import LARGEST
from ..chat.template import ChatTemplate
from ..context.prompt import check_readable, prompt_ids
from ..context.request import ContextRequest
from ..sampling import Constraint, Sampler, SamplingError
from ..stops import stop_strings
from ..tokenizer import Tokenizer
from . import protocol
from .contexts import following, pack_folder, request_of
from .protocol import Chat, Generate, Prompt, Reading, Render, Rendered, Text
from .refusal import Refusal, too_long

if TYPE_CHECKING:
    from ..model import Model

_GIVEN = {"messages", "tools", "add_generation_prompt", "self"}
"""Names that a chat's further variables cannot have."""


@dataclass(frozen=True)
class Prepared:
    """A request, checked. ids: of its prompt, which follows `pack`; n_ctx: room of its context.
    keeps: what it reads and generates is kept."""

    id: int
    slot: int
    tokenizer: Tokenizer
    ids: list[int]
    request: ContextRequest
    n_ctx: int
    pack: Path | None = None
    keeps: bool = True
    max_tokens: int | None = None
    sampler: Sampler = field(default_factory=Sampler)
    logprobs: bool = False
    stop: tuple[str, ...] = ()
    special: bool = False
    ignore_eos: bool = False
    echo: bool = False


class Preparing:
    """Reads requests for one model; any thread may call it.

    n_ctx: the most room of a context. words: how prompts are read unless a request says otherwise.
    """

    def __init__(self, model: Model, n_ctx: int, words: Mapping[str, Any]) -> None:
        self._model, self._n_ctx, self._words = model, n_ctx, words

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template, or a plain one."""
        tokenizer = self._model.tokenizer
        return self._model.chat_template or ChatTemplate.plain(tokenizer.control)

    def generate(self, asked: Generate) -> Prepared:
        """Raises `Refusal`, and `KvarnError` for what is invalid."""
        if asked.max_tokens is not None and asked.max_tokens < 0:
            raise Refusal("invalid", f"max_tokens is {asked.max_tokens}, expected 0 or more")
        reading, n_ctx = asked.reading, self._room(asked.n_ctx)
        pack = pack_folder(reading.pack) if reading.pack else None
        request = self.request(reading, pack)
        stops = asked.stop + (list(self.template.stop) if isinstance(asked.prompt, Chat) else [])
        return Prepared(
            asked.id,
            asked.slot,
            self._model.tokenizer,
            self.ids(asked.prompt, request, n_ctx, begins=pack is None),
            request,
            n_ctx,
            pack,
            reading.keep_in_library,
            asked.max_tokens,
            _sampler(asked.sampling, asked.constraint),
            "n_probs" in asked.sampling,
            stop_strings(stops),
            asked.special,
            asked.ignore_eos,
            asked.echo,
        )

    def request(self, reading: Reading, pack: Path | None = None) -> ContextRequest:
        """What a request asks of its context, which follows a pack."""
        words = {**self._words, **reading.words}
        request = request_of(words)
        return request if pack is None else following(request, words, pack)

    def _room(self, asked: int | None) -> int:
        if asked is not None and asked < 1:
            raise Refusal("invalid", f"n_ctx is {asked}, expected 1 or more")
        return min(asked or self._n_ctx, self._n_ctx)

    def ids(
        self, prompt: Prompt, request: ContextRequest, n_ctx: int, *, begins: bool = True
    ) -> list[int]:
        """The tokens of a prompt that fits. begins: nothing stands before it."""
        ids = prompt if isinstance(prompt, list) else self._read(prompt, begins=begins)[1]
        most = LARGEST if request.keep.evicts(n_ctx) else n_ctx
        if len(ids) > most:
            raise too_long(len(ids), most)
        check_readable(ids, 0, self._model.config.n_vocab, most)
        return ids

    def render(self, asked: Render) -> Rendered:
        """The text and tokens of a prompt."""
        text, ids = self._read(asked.prompt, begins=True)
        if not asked.with_ids:
            return Rendered(asked.id, str(text), len(ids))
        piece = self._model.tokenizer.piece
        return Rendered(asked.id, str(text), len(ids), ids, [piece(i) for i in ids])

    def _read(self, prompt: Prompt, *, begins: bool) -> tuple[str, list[int]]:
        """The text and the tokens of a prompt."""
        tokenizer = self._model.tokenizer
        if isinstance(prompt, list):
            check_readable(prompt, 1, tokenizer.n_vocab, LARGEST)
            return tokenizer.decode(prompt, special=True), prompt
        text = prompt.text if isinstance(prompt, Text) else self._rendered(prompt)
        special = isinstance(prompt, Text) and prompt.special
        return text, prompt_ids(tokenizer, text, begins=begins, special=special)

    def _rendered(self, prompt: Chat) -> str:
        if wrong := sorted(_GIVEN & prompt.extra.keys()):
            raise Refusal("invalid", f"{wrong[0]} cannot be a variable of the chat template")
        messages, ending = prompt.messages, ""
        if not messages:
            raise Refusal("invalid", "messages is empty: expected one message or more")
        if prompt.continues:
            *messages, last = messages
            ending = last.get("content") or ""
            if last.get("role") != "assistant" or not isinstance(ending, str):
                raise Refusal("invalid", "the last message is no answer in text to go on with")
        return self.template.render(messages, tools=prompt.tools, **prompt.extra) + ending


def _sampler(options: Mapping[str, Any], constraint: protocol.Constraint | None) -> Sampler:
    """The sampler of the options by name; `SamplingError` for a name or a value that is none."""
    known = {one.name for one in fields(Sampler)} - {"constraint"}
    if unknown := next((name for name in options if name not in known), ""):
        raise SamplingError(f"sampling: there is no option {unknown!r:.40}")
    given = dict(options)
    if isinstance(bias := options.get("logit_bias"), dict):
        given["logit_bias"] = {_token(key): x for key, x in bias.items()}
    if constraint is not None:
        given["constraint"] = Constraint(
            constraint.kind, constraint.value, constraint.trigger, constraint.after
        )
    return Sampler(**given)


def _token(key: Any) -> Any:
    """The id of a token that JSON spells as text."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key
