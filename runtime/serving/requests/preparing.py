"""Prepares requests for the engine: renders messages, tokenizes, checks options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....system.values import LARGEST
from ...chat import lenient
from ...chat.template import ChatTemplate
from ...context.planning.request import ContextRequest
from ...context.reading.prompt import check_readable, prompt_ids
from ...embedding.texts import shortened
from ...lens.passages import Source
from ...sampling import Constraint, Sampler, SamplingError
from ...sampling.options import bias_of_json
from ...stops import stop_strings
from ...store import Disk
from ...tokenizer import Rendered as Marked
from ...tokenizer import Tokenizer
from ..prompt import Chat, Prompt, Reading, Text
from ..protocol import Generate, ReadPack, Render, Rendered
from ..refusal import Refusal, prompt_too_long
from .contents import contents_of, question_start
from .contexts import after_pack, check_finished, pack_folder, refuse_bad_pack, request_of
from .lens import neutral_ids

if TYPE_CHECKING:
    from ...model import Model
    from ..library.answers import Answers

_GIVEN = {"messages", "tools", "add_generation_prompt", "self"}
"""Names that a chat's further variables cannot have."""


@dataclass(frozen=True)
class PreparedRequest:
    """A request, checked. ids: of its prompt, which follows `pack`; n_ctx: room of its context.
    stop: all strings that end the answer. neutral: see `lens.neutral_ids`, if a lens is asked for;
    sources: what it quotes of a prompt that follows no pack, None where that is not known."""

    asked: Generate
    tokenizer: Tokenizer
    ids: list[int]
    request: ContextRequest
    n_ctx: int
    pack: Path | None
    sampler: Sampler
    stop: tuple[str, ...]
    neutral: list[int] | None
    sources: list[Source] | None

    @property
    def chat(self) -> Chat | None:
        """The conversation that it answers."""
        return self.asked.prompt if isinstance(self.asked.prompt, Chat) and not self.pack else None


@dataclass(frozen=True)
class PackRequest:
    """A pack to make, checked. path: its folder, which is that of the request's store."""

    asked: ReadPack
    path: Path
    ids: list[int]
    request: ContextRequest


class RequestPreparer:
    """Reads requests for one model; any thread may call it.

    n_ctx: the most room of a context. words: how prompts are read unless a request says otherwise.
    answers: those that are known as they were generated.
    """

    def __init__(
        self, model: Model, n_ctx: int, words: Mapping[str, Any], answers: Answers
    ) -> None:
        self._model, self._n_ctx, self._words, self._answers = model, n_ctx, words, answers
        self.tokenizer, self.template = model.tokenizer, ChatTemplate.of(model)

    def generate(self, asked: Generate) -> PreparedRequest:
        """Raises `Refusal`, and `KvarnError` for what is invalid."""
        if asked.max_tokens is not None and asked.max_tokens < 0:
            raise Refusal("invalid", f"max_tokens is {asked.max_tokens}, expected 0 or more")
        n_ctx = self._context_size(asked.n_ctx)
        pack, request = self._pack_and_request(asked.reading)
        ids = self.ids(asked.prompt, request, n_ctx, begins=pack is None)
        neutral = sources = None
        if asked.lens:
            sources = self._sources(asked.prompt, ids) if pack is None else None
            of_chat = partial(self.ids, request=request, n_ctx=LARGEST, begins=pack is None)
            neutral = neutral_ids(self.tokenizer, asked.prompt, ids, of_chat, pack is None)
        stops = asked.stop + (list(self.template.stop) if isinstance(asked.prompt, Chat) else [])
        sampler = self._model.sampler(**_checked_options(asked))
        last = self._model.config.n_vocab - 1
        if (token := max(sampler.logit_bias or (0,))) > last:
            expected = f"expected ids from 0 to {last}"
            raise SamplingError(f"sampling: logit_bias names token {token}, {expected}")
        strings, tokenizer = stop_strings(stops), self.tokenizer
        return PreparedRequest(
            asked, tokenizer, ids, request, n_ctx, pack, sampler, strings, neutral, sources
        )

    def prompt_ids(self, prompt: Prompt, reading: Reading) -> tuple[list[int], Path | None]:
        """The tokens of a prompt, and the pack that it follows. Raises what `generate` raises."""
        pack, request = self._pack_and_request(reading)
        return self.ids(prompt, request, self._n_ctx, begins=pack is None), pack

    def _pack_and_request(self, reading: Reading) -> tuple[Path | None, ContextRequest]:
        """The pack that a request names, and what it asks of its context."""
        pack = pack_folder(reading.pack) if reading.pack else None
        with refuse_bad_pack(pack):
            if pack is not None:
                check_finished(pack)
            return pack, self.request(reading, pack)

    def request(self, reading: Reading, pack: Path | None = None) -> ContextRequest:
        """What a request asks of its context, which follows a pack."""
        request = request_of({**self._words, **reading.words})
        return request if pack is None else after_pack(request, reading.words, pack)

    def _sources(self, prompt: Prompt, ids: list[int]) -> list[Source] | None:
        """What a lens quotes of a prompt: of a chat, the contents of its messages."""
        if not isinstance(prompt, Chat):
            return [Source(0, question_start(self.tokenizer, ids))]
        texts = prompt.finished
        return contents_of(self.tokenizer, texts, ids, lambda it: self._template_of(prompt, it))

    def _context_size(self, asked: int | None) -> int:
        if asked is not None and asked < 1:
            raise Refusal("invalid", f"n_ctx is {asked}, expected 1 or more")
        return min(asked or self._n_ctx, self._n_ctx)

    def ids(
        self,
        prompt: Prompt,
        request: ContextRequest,
        n_ctx: int,
        *,
        begins: bool = True,
        cuts: bool = False,
    ) -> list[int]:
        """The tokens of a prompt that fits. begins: nothing stands before it. cuts: of a longer one
        the beginning, else it is refused."""
        if isinstance(prompt, list):
            ids = prompt
        elif isinstance(prompt, Chat) and begins and not prompt.continues:
            _check_chat(prompt)
            ids = self._answers.prompt_ids(
                prompt.messages, variables_of(prompt), lambda it: self._template_of(prompt, it)
            )
        else:
            ids = self._read(prompt, begins=begins)[1]
        most = LARGEST if request.keep.evicts(n_ctx) else n_ctx
        if cuts:
            ids = shortened(ids, most, self._model.tokenizer)
        if len(ids) > most:
            raise prompt_too_long(len(ids), most)
        check_readable(ids, 0, self._model.config.n_vocab, most)
        return ids

    def read_pack(self, asked: ReadPack) -> PackRequest:
        """A pack to make. Raises `Refusal`, and `KvarnError` for what is invalid."""
        path = pack_folder(asked.name, exists=False)
        if not asked.text:
            raise Refusal("invalid", "text is empty: expected the text of the pack")
        request = self.request(asked.reading)
        ids = self.ids(Text(asked.text), ContextRequest(), self._n_ctx)
        if request.keep.evicts(self._n_ctx):
            raise Refusal("invalid", f"--keep {request.keep.name} keeps no pack of a text")
        store = Disk(path, *request.store.types(), goal=len(ids))
        request = replace(request, n_ctx=self._n_ctx, store=store)
        return PackRequest(asked, path, ids, request)

    def render(self, asked: Render) -> Rendered:
        """The text and tokens of a prompt."""
        if asked.alone and isinstance(asked.prompt, Text):
            text = asked.prompt.text
            ids = self.tokenizer.encode(text, special=asked.prompt.special)
        else:
            text, ids = self._read(asked.prompt, begins=True)
        if not asked.with_ids:
            return Rendered(asked.id, str(text), len(ids))
        piece = self.tokenizer.piece
        return Rendered(asked.id, str(text), len(ids), ids, [piece(i) for i in ids])

    def _read(self, prompt: Prompt, *, begins: bool) -> tuple[str, list[int]]:
        """The text and the tokens of a prompt."""
        tokenizer = self.tokenizer
        if isinstance(prompt, list):
            check_readable(prompt, 1, tokenizer.n_vocab, LARGEST)
            return tokenizer.decode(prompt, special=True), prompt
        text = prompt.text if isinstance(prompt, Text) else self._rendered(prompt)
        special = isinstance(prompt, Text) and prompt.special
        return text, prompt_ids(tokenizer, text, begins=begins, special=special)

    def _rendered(self, prompt: Chat) -> Marked:
        _check_chat(prompt)
        text = self._template_of(prompt, prompt.finished)
        return text + (prompt.messages[-1].get("content") or "") if prompt.continues else text

    def _template_of(self, prompt: Chat, messages: lenient.Messages) -> Marked:
        return lenient.prompt_of(self.template, messages, prompt.tools, prompt.extra)


def variables_of(prompt: Chat) -> dict[str, Any]:
    """What the text of a chat depends on beside its messages."""
    return {**prompt.extra, "tools": prompt.tools}


def _check_chat(prompt: Chat) -> None:
    if wrong := sorted(_GIVEN & prompt.extra.keys()):
        raise Refusal("invalid", f"{wrong[0]} cannot be a variable of the chat template")
    if not prompt.messages:
        raise Refusal("invalid", "messages is empty: expected one message or more")
    last = prompt.messages[-1]
    is_answer = last.get("role") == "assistant" and isinstance(last.get("content") or "", str)
    if prompt.continues and not is_answer:
        raise Refusal("invalid", "the last message is no answer in text to go on with")


def _checked_options(asked: Generate) -> dict[str, Any]:
    """The options of `Sampler` that are asked for; `SamplingError` for a name that is none."""
    options, constraint = asked.sampling, asked.constraint
    known = {one.name for one in fields(Sampler)} - {"constraint"}
    if unknown := next((name for name in options if name not in known), ""):
        raise SamplingError(f"sampling: there is no option {unknown!r:.40}")
    given = {**options, "logit_bias": bias_of_json(options.get("logit_bias"))}
    if asked.ignore_eos:
        given["ignore_eos"] = True
    if constraint is not None:
        given["constraint"] = Constraint.of(constraint)
    return given
